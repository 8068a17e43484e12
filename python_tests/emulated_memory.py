"""Memory of the device of the driver that runs on the CPU, which is found as any driver is."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np


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
