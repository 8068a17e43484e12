"""Calls through ONNX Runtime's CUDA provider, on memory of the GPU.

With `KVCACHE_CUDA_EMULATED` the device is the driver that runs on the CPU, and the library one whose operator for the
CUDA provider has the place of the CPU's: the runtime sees the CPU, and the operator a device.
"""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import onnxruntime
from onnx import TensorProto

from emulated_memory import EmulatedMemory
from kvcache import ELEMENT_TYPES, find_library
from node import quiet_options

EMULATED = bool(os.environ.get("KVCACHE_CUDA_EMULATED"))
DEVICE = "cpu" if EMULATED else "cuda"

# What the operators read on the host; in static batching `start_pos` too. `MultiHeadAttention` reads `kvstarts` on the
# device.
ON_HOST = ("kvstarts", "max_seqlen", "max_kvlen", "decoding_batches")
STATIC_ON_HOST = ("start_pos",)


@lru_cache(maxsize=1)
def why_no_gpu() -> str | None:
    """Why no session can run on a GPU here; None if one can."""
    if EMULATED:
        return None
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return f"onnxruntime {onnxruntime.__version__} has no CUDA provider (onnxruntime-gpu has one)"
    try:
        # The libraries of NVIDIA's packages, where they are installed.
        onnxruntime.preload_dlls()
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception as error:  # whatever the runtime raises
        return f"the CUDA provider does not work here: {error}"
    return None


@lru_cache(maxsize=64)
def device_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session of the model all of whose nodes are on the GPU."""
    provider = "CPUExecutionProvider" if EMULATED else "CUDAExecutionProvider"
    options = quiet_options()
    if not EMULATED:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    assert session.get_providers()[0] == provider, session.get_providers()
    return session


class DeviceArray:
    """An array in memory of the GPU. Packed int4 has a shape of its own."""

    def __init__(self, array: np.ndarray, int4_shape: tuple[int, ...] | None = None):
        # One element more than there are, so that there is memory in any case.
        flat = np.concatenate([array.reshape(-1), np.zeros(1, array.dtype)])
        self._memory = EmulatedMemory(flat) if EMULATED else onnxruntime.OrtValue.ortvalue_from_numpy(flat, "cuda", 0)
        self._shape = array.shape
        self._type = ELEMENT_TYPES[array.dtype] if int4_shape is None else TensorProto.INT4
        self._bound = (self._type, array.shape if int4_shape is None else int4_shape, self._memory.data_ptr())

    def bind(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Binds the memory itself to an input."""
        binding.bind_input(name, DEVICE, 0, *self._bound)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Binds the memory itself to an output."""
        binding.bind_output(name, DEVICE, 0, *self._bound)

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        return self._memory.numpy()[:-1].reshape(self._shape)


def device_call(
    model: bytes, inputs: dict[str, np.ndarray], state: dict[str, DeviceArray], num_repeat: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """One call of a one-node model: key and value. The state stays on the GPU and is changed there."""
    current = inputs["current_key"]
    *rows, num_heads, head_dim = current.shape
    is_static = "kvstarts" not in inputs
    rows = [rows[0], inputs["start_pos"].item() + rows[1]] if is_static else [int(inputs["kvstarts"][-1])]
    shape = (*rows, num_heads * num_repeat, head_dim)
    key, value = (DeviceArray(np.zeros(shape, current.dtype)) for _ in range(2))
    _run(model, inputs, state, dict(key=key, value=value))
    return key.numpy(), value.numpy()


def device_attention(model: bytes, inputs: dict[str, np.ndarray], state: dict[str, DeviceArray]) -> np.ndarray:
    """One call of a one-node model of an attention operator: attn_output. The state is changed on the GPU."""
    attn_output = DeviceArray(np.zeros_like(inputs["query"]))
    _run(model, inputs, state, dict(attn_output=attn_output))
    return attn_output.numpy()


def _run(
    model: bytes, inputs: dict[str, np.ndarray], state: dict[str, DeviceArray], outputs: dict[str, DeviceArray]
) -> None:
    session = device_session(model)
    binding = session.io_binding()
    names = ON_HOST if "kvstarts" in inputs else STATIC_ON_HOST
    on_host = [name for name in names if name in inputs and not (name == "kvstarts" and "key" in inputs)]
    arrays = {name: DeviceArray(array) for name, array in inputs.items() if name not in on_host}
    for name, array in (arrays | state).items():
        array.bind(binding, name)
    for name in on_host:
        binding.bind_cpu_input(name, inputs[name])
    for name, output in outputs.items():
        output.bind_output(binding, name)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
