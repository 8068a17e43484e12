"""Calls through ONNX Runtime's CUDA provider, on memory of the GPU.

With `KVCACHE_CUDA_EMULATED` the device is the driver that runs on the CPU, and the library one whose operator for the
CUDA provider has the place of the CPU's: the runtime sees the CPU, and the operator a device.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

import numpy as np
import onnxruntime
from kvcache_ops.ops._cache_spec import OF_ML_DTYPES, type_name
from onnx import TensorProto

from compare import Arrays
from sessions import element_type, find_library, quiet_options

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


@lru_cache(maxsize=1)
def driver() -> ctypes.CDLL:
    """The driver, with the device's context current on this thread."""
    library = ctypes.CDLL("libcuda.so")
    name = ctypes.create_string_buffer(64)
    library.cuDeviceGetName(name, 64, 0)
    assert name.value == b"CUDA on the CPU", f"{name.value!r} is not the driver that runs on the CPU"
    context = ctypes.c_size_t()
    checked(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(library.cuCtxSetCurrent(context))
    return library


def checked(code: int) -> None:
    """Fails on an error of the driver."""
    assert code == 0, f"the driver's error {code}"


class EmulatedMemory:
    """A copy of an array in the device's memory; what the tests use of an `OrtValue`."""

    def __init__(self, array: np.ndarray):
        self._shape, self._dtype, self._len = array.shape, array.dtype, ctypes.c_size_t(array.nbytes)
        self._address = ctypes.c_uint64()
        checked(driver().cuMemAlloc_v2(ctypes.byref(self._address), self._len))
        checked(driver().cuMemcpyHtoD_v2(self._address, array.ctypes.data_as(ctypes.c_void_p), self._len))

    def __del__(self) -> None:
        driver().cuMemFree_v2(self._address)

    def data_ptr(self) -> int:
        """The address."""
        return self._address.value

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        array = np.empty(self._shape, self._dtype)
        checked(driver().cuMemcpyDtoH_v2(array.ctypes.data_as(ctypes.c_void_p), self._address, self._len))
        return array


class DeviceArray:
    """An array in memory of the GPU. Packed int4 has a shape of its own."""

    def __init__(self, array: np.ndarray, int4_shape: tuple[int, ...] | None = None):
        # One element more than there are, so that there is memory in any case.
        flat = np.concatenate([array.reshape(-1), np.zeros(1, array.dtype)])
        if type_name(array.dtype) in OF_ML_DTYPES:
            flat = flat.view(f"u{array.itemsize}")
        self._memory = EmulatedMemory(flat) if EMULATED else onnxruntime.OrtValue.ortvalue_from_numpy(flat, "cuda", 0)
        self._shape, self._dtype = array.shape, array.dtype
        type_ = element_type(array) if int4_shape is None else TensorProto.INT4
        # What binds the memory itself: the type, the shape in elements, and the address.
        self.bound = (type_, array.shape if int4_shape is None else int4_shape, self._memory.data_ptr())

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        return self._memory.numpy()[:-1].view(self._dtype).reshape(self._shape)


def device_call(
    model: bytes, inputs: Arrays, state: dict[str, DeviceArray], outputs: dict[str, tuple[int, ...]]
) -> Arrays:
    """One call of a one-node model: outputs of these shapes. The state stays on the GPU and is changed there."""
    rows = next(iter(inputs.values()))
    types = {"attention_mass": np.float32}  # the others have the type of the first input
    made = {name: DeviceArray(np.zeros(shape, types.get(name, rows.dtype))) for name, shape in outputs.items()}
    binding = device_session(model).io_binding()
    names = ON_HOST if "kvstarts" in inputs else STATIC_ON_HOST
    on_host = [name for name in names if name in inputs and not (name == "kvstarts" and "key" in inputs)]
    arrays = {name: DeviceArray(array) for name, array in inputs.items() if name not in on_host}
    for name, array in (arrays | state).items():
        binding.bind_input(name, DEVICE, 0, *array.bound)
    for name in on_host:
        binding.bind_cpu_input(name, inputs[name])
    for name, array in made.items():
        binding.bind_output(name, DEVICE, 0, *array.bound)
    device_session(model).run_with_iobinding(binding)
    binding.synchronize_outputs()
    return {name: array.numpy() for name, array in made.items()}
