"""What a cache is (`CacheSpec`), and its memory (`Cache`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load

T1 = Literal["float32", "float16", "int8", "bfloat16"]
T2 = Literal["float32", "float16", "int8", "int4", "bfloat16", "float8e4m3fn"]
T3 = Literal["float32", "float16"]
CacheShape = tuple[int, int, int, int, int]
ScaleShape = CacheShape | tuple[int, int, int]
Operand = tuple[str, list[int | None] | None]
"""The type of a tensor and its shape, with None for any length, or for any shape."""

CACHE_LAYOUTS = tuple((*axes, "Dh") for axes in _native.cache_layouts())
"""The axes of `cache` by `cache_layout`; `scale` has them too, with Dh / quant_group in the place of Dh."""

LINE = 64
"""Bytes of a cache line, to which memory is aligned."""

ONNX_TYPES = dict(_native.element_types())
"""The types of tensors by their names, as onnx.TensorProto numbers them."""

# Types that numpy has by another name than ours: int4 as packed bytes, and the types of the package ml_dtypes.
_PACKED, OF_ML_DTYPES = {"int4": "uint8"}, {"bfloat16": "bfloat16", "float8e4m3fn": "float8_e4m3fn"}

# The memory that IOBindings point to, which they do not keep themselves.
_BOUND: WeakKeyDictionary[Any, list[Cache]] = WeakKeyDictionary()


Name = TypeVar("Name", bound="str | None")


class TypeName(Generic[Name]):
    """A field of a `CacheSpec` that is the name of a type. numpy's types are taken too: np.float16 is "float16"."""

    def __init__(self, default: Name) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, spec: object | None, owner: type | None = None) -> Name:
        name: Name = self.default if spec is None else spec.__dict__[self.name]
        return name

    def __set__(self, spec: object, value: Name | type[np.generic] | np.dtype[Any] | None) -> None:
        try:
            spec.__dict__[self.name] = value if value is None or isinstance(value, str) else type_name(value)
        except TypeError:
            message = f"{self.name} is {value!r}, expected the name of a type"
            raise KvCacheError(message, "type_unknown") from None


@dataclass(frozen=True)
class CacheSpec:
    """A cache for the keys and values of `num_layers` attention layers: its types, sizes, and the order of its axes.

    max_tokens: slots for tokens (MaxT). num_kv_heads, head_dim: cache heads (H), elements of a head (Dh).
    dtype: the type of the model's keys and values (T1): "float32", "float16", "bfloat16", or "int8" without
    quantization. cache_dtype: the type of the cache's elements (T2); None follows `quant_bit`: "int8" for 8, "int4" for
    4, else `dtype`; "float8e4m3fn", floats of 8 bits, has `quant_bit` 8. scale_dtype: the type of the scales (T3),
    "float32" or "float16"; None is `dtype` in a quantized cache ("float32" for "bfloat16"), else no scales.
    quant_bit: 0 (none), 8 or 4. quant_group: neighbors along head_dim that share a scale.
    static_scale: for "float8e4m3fn", scales (L, 2, H) that calls read and do not write; slots have none, and
    `quant_group` has no effect.
    quant_rotation: 1 multiplies keys by a Hadamard matrix before they are quantized, in blocks of 32 elements or of a
    longer `quant_group`, which about halves the quality that int4 loses; 0 does not.
    cache_layout: 0 (MaxT, L, 2, H, Dh), 1 (L, MaxT, 2, H, Dh), 2 (L, 2, MaxT, H, Dh), 3 (L, 2, H, MaxT, Dh).
    cache_mode: 0 (a sequence has neighboring slots) or 1 (pages of `page_size` slots).

    The operators, the manager and `Cache` take it. It can be compared, hashed, pickled and printed as an expression.

    Raises KvCacheError with the library's sentence for what the operator refuses, such as "illegal_types" or
    "head_dim_not_divisible", and "spec_range" for sizes below 1.
    """

    max_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: TypeName[T1] = TypeName("float16")
    num_layers: int = 1
    cache_layout: int = 0
    quant_bit: int = 0
    quant_group: int = 8
    cache_dtype: TypeName[T2 | None] = TypeName(None)
    scale_dtype: TypeName[T3 | None] = TypeName(None)
    cache_mode: int = 0
    page_size: int = 128
    static_scale: bool = False
    quant_rotation: int = 0

    def __post_init__(self) -> None:
        quantized = {8: "int8", 4: "int4"}.get(self.quant_bit) if isinstance(self.quant_bit, int | np.integer) else None
        if self.cache_dtype is None:
            object.__setattr__(self, "cache_dtype", quantized or self.dtype)
        if self.scale_dtype is None and quantized:
            object.__setattr__(self, "scale_dtype", "float32" if self.dtype == "bfloat16" else self.dtype)
        if not isinstance(self.static_scale, bool | np.bool_):
            raise KvCacheError(f"static_scale is {self.static_scale!r}, expected a bool", "spec_range")
        object.__setattr__(self, "static_scale", bool(self.static_scale))
        _ = self._geometry  # checks all
        if self.scale_dtype is not None and not quantized:
            message = f"scale_dtype is {self.scale_dtype!r}, expected None because quant_bit is 0"
            raise KvCacheError(message, "scale_unexpected")
        for field in fields(self):
            if isinstance(number := getattr(self, field.name), np.integer):
                object.__setattr__(self, field.name, int(number))

    @cached_property
    def _geometry(self) -> tuple[tuple[CacheShape, int], tuple[ScaleShape, int] | None]:
        """Shape and bytes of the cache, and of the scale where there is one."""
        sizes = {name: getattr(self, name) for name in ("max_tokens", "num_kv_heads", "head_dim")}
        for name, got in sizes.items():
            if not isinstance(got, int | np.integer) or not -(2**63) <= got < 2**63:
                raise KvCacheError(f"{name} is {got!r}, expected an int of 64 bits", "spec_range")
        types = (str(self.dtype), str(self.cache_dtype), self.scale_dtype)
        return _native.cache_geometry(self.attributes(), *types, **sizes)

    @cached_property
    def _operands(self) -> dict[str, Operand]:
        """Type and shape of the tensors of a call, as far as the spec knows them."""
        operands: dict[str, Operand] = {
            "query": (self.dtype, None),
            "current_key": (self.dtype, [None, self.num_kv_heads, self.head_dim]),
            "cache": (str(self.cache_dtype), list(self.cache_shape)),
        }
        if self.scale_shape is not None:
            # An axis of static scales may be 1.
            operands["scale"] = (str(self.scale_dtype), None if self.static_scale else list(self.scale_shape))
        return operands

    def attributes(self, layer_idx: int = 0, num_repeat: int = 1) -> dict[str, int]:
        """The attributes of a node KeyValueCache on layer `layer_idx` of this cache.

        `num_repeat` is how often each cache head is repeated in the outputs (grouped-query attention).
        """
        attributes = {
            "num_layer": self.num_layers,
            "layer_idx": layer_idx,
            "quant_bit": self.quant_bit,
            "quant_group": self.quant_group,
            "num_repeat": num_repeat,
            "cache_mode": self.cache_mode,
            "cache_layout": self.cache_layout,
            "page_size": self.page_size,
        }
        quant_type = 2 if self.static_scale else int(self.cache_dtype == "float8e4m3fn")
        extensions = {"quant_type": quant_type, "quant_rotation": self.quant_rotation}
        return attributes | {name: value for name, value in extensions.items() if value}

    @property
    def cache_shape(self) -> CacheShape:
        """The shape of `cache` in elements, by `cache_layout`. An array of int4 has head_dim / 2 in its last axis."""
        return self._geometry[0][0]

    @property
    def scale_shape(self) -> ScaleShape | None:
        """The shape of `scale`, head_dim / quant_group in the last axis, of static scales (L, 2, H); None without
        quantization."""
        scale = self._geometry[1]
        return None if scale is None else scale[0]

    @property
    def cache_bytes(self) -> int:
        """The bytes of `cache`."""
        return self._geometry[0][1]

    @property
    def scale_bytes(self) -> int:
        """The bytes of `scale`, 0 where there is none."""
        scale = self._geometry[1]
        return 0 if scale is None else scale[1]

    @property
    def bytes_per_token(self) -> int:
        """What one token takes in all layers: keys, values and scales, unless these are static."""
        return (self.cache_bytes + (0 if self.static_scale else self.scale_bytes)) // self.max_tokens

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of `cache` and `scale`, outermost first: MaxT, L, 2, H in the layout's order, Dh."""
        return CACHE_LAYOUTS[self.cache_layout]

    def allocate(self) -> Cache:
        """New memory for this cache: zeros, aligned to 64 bytes. Static scales are ones, until you write yours.

        Raises KvCacheError of kind "out_of_memory".
        """
        scale_shape = self.scale_shape
        scale = None
        cache = _zeros("cache", self.cache_bytes, str(self.cache_dtype), self.cache_shape)
        if scale_shape is not None:
            scale = _zeros("scale", self.scale_bytes, str(self.scale_dtype), scale_shape)
            if self.static_scale:
                scale.fill(1)
        return Cache(self, cache, scale)


def _zeros(name: str, nbytes: int, dtype: str, shape: ScaleShape) -> NDArray[Any]:
    """Zeros on a cache line of their own; `shape` is in elements."""
    try:
        memory = np.zeros(nbytes + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise KvCacheError(f"out of memory for {name}: {nbytes} bytes", "out_of_memory") from error
    start = -memory.ctypes.data % LINE
    zeros: NDArray[Any] = memory[start : start + nbytes].view(numpy_type(dtype))
    return zeros.reshape(_stored_shape(dtype, shape))


def numpy_type(dtype: str) -> Any:
    """numpy's type of this name, or ml_dtypes' where numpy has none."""
    if dtype in OF_ML_DTYPES:
        return getattr(load("ml_dtypes", f"a cache of {dtype}"), OF_ML_DTYPES[dtype])
    return np.dtype(_PACKED.get(dtype, dtype))


def type_name(dtype: Any) -> str:
    """The name of numpy's type."""
    return str(np.dtype(dtype).name).replace("_", "")


def _stored_shape(dtype: str, shape: ScaleShape) -> tuple[int, ...]:
    """The shape of the numpy array: of int4, of its bytes."""
    return (*shape[:-1], shape[-1] // 2) if dtype == "int4" else shape


class Cache:
    """The memory of a cache: the arrays `cache` and `scale`, which calls write in place.

        cache, scale = spec.allocate()

    `cache` is a numpy array of the shape `spec.cache_shape`; of int4, which numpy does not have, it has uint8 with two
    elements in a byte, the first in the low nibble, and head_dim / 2 in its last axis. `scale` is None without
    quantization. Static scales are only read; each of their lengths may be 1 instead of `spec.scale_shape`'s. Memory of
    your own is taken as it is, never copied: a numpy array or another tensor that exports versioned DLPack.

    Raises KvCacheError: "read_only", "not_contiguous", "device", "type_mismatch", "rank_mismatch", "shape_mismatch",
    "dlpack_version", "misaligned", "scale_missing", "scale_unexpected".
    """

    spec: CacheSpec
    cache: Any
    scale: Any

    def __init__(self, spec: CacheSpec, cache: Any, scale: Any = None) -> None:
        self.spec, self.cache, self.scale = spec, cache, scale
        self._tensors()

    def __iter__(self) -> Iterator[Any]:
        """`cache`, then `scale`."""
        return iter((self.cache, self.scale))

    def _tensors(self) -> list[tuple[str, Any, str, ScaleShape, int]]:
        """Name, array, type, shape in elements and address of the tensors that there are, checked again."""
        spec, scale_shape = self.spec, self.spec.scale_shape
        if self.scale is None and scale_shape is not None:
            raise KvCacheError(f"scale is None, expected {spec.scale_dtype} of shape {scale_shape}", "scale_missing")
        if self.scale is not None and scale_shape is None:
            raise KvCacheError("scale is given, expected None because quant_bit is 0", "scale_unexpected")
        given: list[tuple[str, Any, str | None, ScaleShape]] = [
            ("cache", self.cache, spec.cache_dtype, spec.cache_shape)
        ]
        if scale_shape is not None:
            lengths = getattr(self.scale, "shape", None)
            if spec.static_scale and isinstance(lengths, tuple) and len(lengths) == len(scale_shape):
                broadcast = (1 if got == 1 else full for got, full in zip(lengths, scale_shape, strict=True))
                scale_shape = cast("ScaleShape", tuple(broadcast))
            given.append(("scale", self.scale, spec.scale_dtype, scale_shape))
        return [
            (name, array, str(dtype), shape, _native.address_of(name, array, str(dtype), list(shape), written))
            for name, array, dtype, shape in given
            for written in [name == "cache" or not spec.static_scale]
        ]

    def bind(self, io_binding: Any, cache: str = "cache", scale: str = "scale") -> None:
        """Binds the memory to the inputs of these names (`onnxruntime.IOBinding`): once, for every later run.

        The operator then writes this memory. The binding keeps it alive.
        """
        names = {"cache": cache, "scale": scale}
        for name, _, dtype, shape, address in self._tensors():
            io_binding.bind_input(names[name], "cpu", 0, ONNX_TYPES[dtype], shape, address)
        _BOUND.setdefault(io_binding, []).append(self)

    def ortvalues(self) -> dict[str, Any]:
        """`onnxruntime.OrtValue`s on this memory by "cache" and, with quantization, "scale": feeds of `session.run`.

        They keep the memory alive. An int4 cache has the type and the shape that the operator expects.
        """
        ort_value = load("onnxruntime", "ortvalues()").OrtValue
        values = {}
        for name, array, dtype, shape, _ in self._tensors():
            if not isinstance(array, np.ndarray):
                raise KvCacheError(f"{name} is a {type(array).__name__}, expected a numpy array", "not_an_array")
            if dtype in OF_ML_DTYPES:
                bits = array.view(f"u{array.itemsize}")
                values[name] = ort_value.ortvalue_from_numpy_with_onnx_type(bits, ONNX_TYPES[dtype])
            elif dtype == "int4":
                # ONNX Runtime takes address and shape of the array, and believes the type: so this view of the packed
                # bytes has the shape in elements. It is never read.
                array = np.lib.stride_tricks.as_strided(array, shape, (0,) * len(shape))
                values[name] = ort_value.ortvalue_from_numpy_with_onnx_type(array, ONNX_TYPES[dtype])
            else:
                values[name] = ort_value.ortvalue_from_numpy(array)
        return values

    def rows(self, slots: Any) -> list[NDArray[Any]]:
        """Copies of slots: (slots, L, 2, H, Dh) of `cache`, of int4 (..., Dh / 2), and the same of `scale`, if any, but
        static scales."""
        order = [self.spec.axes.index(axis) for axis in ("MaxT", "L", "2", "H", "Dh")]
        state = [self.cache] if self.spec.static_scale else self
        arrays = [np.asarray(array) for array in state if array is not None]
        return [array.transpose(order)[slots] for array in arrays]
