"""Calls through ONNX Runtime's CUDA provider, on memory of the GPU."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnxruntime
from onnx import TensorProto

from kvcache import ELEMENT_TYPES, find_library
from node import quiet_options

# What the operator reads on the host.
ON_HOST = ("kvstarts", "max_seqlen", "max_kvlen")


@lru_cache(maxsize=1)
def why_no_gpu() -> str | None:
    """Why no session can run on a GPU here; None if one can."""
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
    options = quiet_options()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
    return session


class DeviceArray:
    """An array in memory of the GPU. Packed int4 has a shape of its own."""

    def __init__(self, array: np.ndarray, int4_shape: tuple[int, ...] | None = None):
        # One element more than there are, so that there is memory in any case.
        flat = np.concatenate([array.reshape(-1), np.zeros(1, array.dtype)])
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy(flat, "cuda", 0)
        self._shape = array.shape
        self._type = ELEMENT_TYPES[array.dtype] if int4_shape is None else TensorProto.INT4
        self._bound_shape = array.shape if int4_shape is None else int4_shape

    def bind(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Binds the memory itself."""
        binding.bind_input(name, "cuda", 0, self._type, self._bound_shape, self._value.data_ptr())

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        return self._value.numpy()[:-1].reshape(self._shape)


def device_call(
    model: bytes, inputs: dict[str, np.ndarray], state: dict[str, DeviceArray]
) -> tuple[np.ndarray, np.ndarray]:
    """One call of a one-node model: key and value. The state stays on the GPU and is changed there."""
    session = device_session(model)
    binding = session.io_binding()
    arrays = {name: DeviceArray(array) for name, array in inputs.items() if name not in ON_HOST}
    for name, array in (arrays | state).items():
        array.bind(binding, name)
    for name in ON_HOST:
        binding.bind_cpu_input(name, inputs[name])
    binding.bind_output("key", "cuda")
    binding.bind_output("value", "cuda")
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    key, value = (output.numpy() for output in binding.get_outputs())
    return key, value
