"""Tensors of other libraries: a class that exports the memory of a numpy array through DLPack, as torch does."""

from __future__ import annotations

import ctypes

import numpy as np

CPU, CUDA, PINNED = 1, 2, 3
READ_ONLY, IS_COPIED = 1, 2
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Managed(ctypes.Structure):
    """`DLManagedTensorVersioned` of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Exporter:
    """A tensor on the memory of a numpy array, which it exports as it is told to."""

    def __init__(
        self,
        array: np.ndarray,
        *,
        flags: int = 0,
        device: int = CPU,
        version: tuple[int, int] = (1, 0),
        name: bytes = b"dltensor_versioned",
        bits: int | None = None,
        code: int | None = None,
        offset: int = 0,
        no_strides: bool = False,
    ):
        self.array, self.name, self.device = array, name, device
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))
        self._managed = _Managed(
            major=version[0],
            minor=version[1],
            flags=flags,
            data=array.ctypes.data - offset,
            device_type=device,
            ndim=array.ndim,
            code=CODES[array.dtype.kind] if code is None else code,
            bits=array.itemsize * 8 if bits is None else bits,
            lanes=1,
            shape=self._shape,
            strides=None if no_strides else self._strides,
            byte_offset=offset,
        )

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> object:
        assert max_version == (1, 0)
        return _new_capsule(ctypes.addressof(self._managed), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class OldExporter(Exporter):
    """One of the time before versions."""

    def __dlpack__(self) -> object:  # type: ignore[override]
        raise AssertionError("it cannot say what is read-only")
