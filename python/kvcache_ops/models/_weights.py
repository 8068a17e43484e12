"""Weights as a model has them: floats, or blocks of codes with their scales and minima, taken from GGUF's blocks.

Nothing is dequantized: codes are the file's own, and so are scales and minima, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]

FLOATS = ("F32", "F16", "BF16")
"""The types of vectors that are read from GGUF, and of all that is from safetensors."""


@dataclass(frozen=True)
class Dense:
    """A matrix (outputs, inputs), or a vector, of float32, float16 or bfloat16."""

    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, order: NDArray[np.intp]) -> Dense:
        """These rows, in this order."""
        return Dense(self.values[order])


@dataclass(frozen=True)
class Blocks:
    """A matrix (N, K) of codes in blocks along K: a weight is scale * (code - 2^(bits - 1)), or scale * code + minimum.

    codes: (N, K), one in a byte. scales, minima: (N, ceil(K / block)); without minima these are None.
    """

    bits: int
    block: int
    codes: _Bytes
    scales: _Floats
    minima: _Floats | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, order: NDArray[np.intp]) -> Blocks:
        """These rows, in this order."""
        minima = None if self.minima is None else self.minima[order]
        return replace(self, codes=self.codes[order], scales=self.scales[order], minima=minima)

    @property
    def format(self) -> tuple[int, int, bool]:
        """The properties that two matrices must share to be stacked."""
        return self.bits, self.block, self.minima is None


Weight = Dense | Blocks

_CHUNK = 1 << 20  # elements that are checked at once
_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits that are all set where a number is not finite


def not_finite(values: NDArray[Any], most: float | None = np.inf) -> int | None:
    """The index in the flat array of a value that is NaN or not below `most`, if that is given, if there is one."""
    flat, mask = values.reshape(-1), _EXPONENT.get(values.dtype.name)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        if most is None:
            bad = np.isnan(part)
        elif mask is not None and most == np.inf:  # several times as fast as in floats
            bad = (part.view(np.uint16) & np.uint16(mask)) == mask
        else:
            bad = ~(np.abs(part) < most)
        if bad.any():
            return begin + int(bad.argmax())
    return None


def check_finite(name: str, values: NDArray[Any], most: float | None = np.inf, what: str = "value") -> None:
    """Refuses a value that is NaN or not below `most`, if that is given, of the tensor `name` with "tensor_values"."""
    if (at := not_finite(values, most)) is not None:
        place = [int(i) for i in np.unravel_index(at, values.shape)]
        message = f"{name} has the {what} {values.reshape(-1)[at]} at {place}, expected finite numbers"
        raise KvCacheError(f"{message}: the file is damaged, or its maker failed", "tensor_values")


def checked(name: str, weight: Weight) -> Weight:
    """The weight, all of whose values are finite. Raises KvCacheError "tensor_values"."""
    if isinstance(weight, Dense):
        parts = {"value": (weight.values, np.inf)}
    else:  # a weight is at most so many scales
        parts = {"scale": (weight.scales, np.finfo(np.float32).max / 2**weight.bits)}
        if weight.minima is not None:
            parts["minimum"] = (weight.minima, np.inf)
    for what, (values, most) in parts.items():
        check_finite(name, values, most, what)
    return weight


def stack(weights: Sequence[Weight]) -> list[Weight]:
    """The same matrices, one above the other where all have one format; else as they are."""
    first = weights[0]
    if isinstance(first, Blocks):
        blocks = [weight for weight in weights if isinstance(weight, Blocks) and weight.format == first.format]
        if len(blocks) == len(weights):
            codes, scales = np.concatenate([b.codes for b in blocks]), np.concatenate([b.scales for b in blocks])
            minima = [b.minima for b in blocks if b.minima is not None]
            return [Blocks(first.bits, first.block, codes, scales, np.concatenate(minima) if minima else None)]
    elif all(isinstance(weight, Dense) and weight.values.dtype == first.values.dtype for weight in weights):
        return [Dense(np.concatenate([weight.values for weight in weights if isinstance(weight, Dense)]))]
    return list(weights)


def from_gguf(kind: str, data: NDArray[Any]) -> Weight:
    """A tensor of one of GGUF_TYPES from its values, or the bytes of its rows, as `gguf.GGUFReader` has them."""
    if kind in ("F32", "F16"):
        return Dense(data)
    if kind == "BF16":
        from ml_dtypes import bfloat16

        return Dense(data.view(bfloat16))
    return _BLOCKS[kind](data)


def convert(name: str, weight: Weight, weights: str) -> Weight:
    """A matrix as `weights` asks: "auto" leaves it; "int8" and "int4" are GGUF's Q8_0 and Q4_0 of a float matrix.

    The embedding and the head are given int8 where int4 is asked for. Raises KvCacheError "weights_quantized" for a
    quantized matrix, "tensor_shape" for rows that are not whole blocks of 32, and "weights_range" for values that
    float16 cannot have.
    """
    if weights == "auto":
        return weight
    if isinstance(weight, Blocks):
        message = f"{name} is quantized in the file, expected weights to be 'auto', got {weights!r}"
        raise KvCacheError(message, "weights_quantized")
    if weights in ("float32", "float16"):
        with np.errstate(over="ignore"):
            return _in_range(name, weight, Dense(weight.values.astype(weights)), weights)
    from gguf import GGMLQuantizationType, quants

    if weight.values.shape[-1] % 32:
        message = f"{name} has {weight.values.shape[-1]} columns, expected a multiple of 32 for weights {weights!r}"
        raise KvCacheError(message, "tensor_shape")
    kind = "Q4_0" if weights == "int4" and name.startswith("blk.") else "Q8_0"
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = from_gguf(kind, quants.quantize(weight.values.astype(np.float32), GGMLQuantizationType[kind]))
    return _in_range(name, weight, blocks, weights)


def _in_range(name: str, given: Dense, made: Weight, weights: str) -> Weight:
    """What was made of a matrix, unless the numbers of its type, or the float16 scales of its blocks, overflow."""
    if not_finite(made.values if isinstance(made, Dense) else made.scales) is None:
        return made
    largest = float(np.abs(given.values.astype(np.float32)).max())
    message = f"{name} has values up to {largest:g}, which overflow in weights {weights!r}"
    raise KvCacheError(f"{message}: expected weights 'auto' or 'float32'", "weights_range")


def _blocks(bits: int, block: int, codes: _Bytes, scales: _Floats, minima: _Floats | None = None) -> Blocks:
    """The matrix of these blocks, of any shape whose first axis is the rows."""
    flat = (len(codes), -1)
    minima = None if minima is None else minima.reshape(flat)
    return Blocks(bits, block, codes.reshape(flat), scales.reshape(flat), minima)


def _q8_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 32 signed bytes q; d * q."""
    blocks = data.reshape(len(data), -1, 34)
    return _blocks(8, 32, blocks[..., 2:] ^ np.uint8(0x80), _halves(blocks[..., :2]))


def _q4_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 16 bytes, the first 16 codes q in their low nibbles; d * (q - 8)."""
    blocks = data.reshape(len(data), -1, 18)
    return _blocks(4, 32, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]))


def _q4_1(data: _Bytes) -> Blocks:
    """32 weights: float16 d and m, 16 bytes as in Q4_0; d * q + m."""
    blocks = data.reshape(len(data), -1, 20)
    return _blocks(4, 32, _nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q5_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 32 fifth bits, 16 bytes as in Q4_0; d * (q - 16)."""
    blocks = data.reshape(len(data), -1, 22)
    return _blocks(8, 32, _fifth(blocks[..., 2:6], blocks[..., 6:]) + np.uint8(128 - 16), _halves(blocks[..., :2]))


def _q5_1(data: _Bytes) -> Blocks:
    """32 weights: float16 d and m, 32 fifth bits, 16 bytes as in Q4_0; d * q + m."""
    blocks = data.reshape(len(data), -1, 24)
    scales, minima = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return _blocks(8, 32, _fifth(blocks[..., 4:8], blocks[..., 8:]), scales, minima)


def _q2_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: 4 bits each of scales s and minima m, codes of 2 bits, float16 d and dmin."""
    blocks = data.reshape(len(data), -1, 84)
    scales = _halves(blocks[..., 80:82])[..., None] * (blocks[..., :16] & np.uint8(15))
    minima = _halves(blocks[..., 82:])[..., None] * (blocks[..., :16] >> np.uint8(4))
    return _blocks(4, 16, _pairs(blocks[..., 16:80]), scales, -minima)


def _q3_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: third bits of codes q, two lower ones, 6 bits each of scales s, a float16 d.

    d * (s - 32) * (q - 4).
    """
    blocks = data.reshape(len(data), -1, 110)
    third = (blocks[..., None, :32] >> _SHIFTS_BY_1) & np.uint8(1)
    codes = _pairs(blocks[..., 32:96]) + (third.reshape(*blocks.shape[:2], 256) << np.uint8(2)) + np.uint8(4)
    high = ((blocks[..., None, 104:108] >> _SHIFTS_BY_2) & np.uint8(3)).reshape(*blocks.shape[:2], 16)
    six = (_nibbles(blocks[..., 96:104]) | (high << np.uint8(4))).astype(np.float32) - 32
    return _blocks(4, 16, codes, _halves(blocks[..., 108:])[..., None] * six)


def _q4_k(data: _Bytes) -> Blocks:
    """256 weights in 8 blocks: float16 d and dmin, 6 bits each of scales s and minima m; d * s * q - dmin * m."""
    blocks = data.reshape(len(data), -1, 144)
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[..., 16:].reshape(len(data), -1, 32))  # the next 32 codes are in the high nibbles
    return _blocks(4, 32, codes, scales, -minima)


def _q5_k(data: _Bytes) -> Blocks:
    """256 weights as in Q4_K, and 256 fifth bits before the others."""
    blocks = data.reshape(len(data), -1, 176)
    scales, minima = _scales_and_minima(blocks)
    fifth = ((blocks[..., None, 16:48] >> _SHIFTS_BY_1) & np.uint8(1)) << np.uint8(4)
    low = _nibbles(blocks[..., 48:].reshape(len(data), -1, 32))
    return _blocks(8, 32, low.reshape(*scales.shape, 32) | fifth.reshape(*scales.shape, 32), scales, -minima)


def _q6_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: low 4 and high 2 bits of codes q, signed bytes s, a float16 d; d * s * (q - 32)."""
    blocks = data.reshape(len(data), -1, 210)
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(*blocks.shape[:2], 256)
    codes: _Bytes = (low | (_pairs(blocks[..., 128:192]) << np.uint8(4))) + np.uint8(128 - 32)
    scales = _halves(blocks[..., 208:])[..., None] * blocks[..., 192:208].view(np.int8).astype(np.float32)
    return _blocks(8, 16, codes, scales)


def _iq4_nl(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 16 bytes as in Q4_0, whose codes are places in a table of signed bytes; d * table[q]."""
    from gguf.quants import IQ4_NL

    blocks = data.reshape(len(data), -1, 18)
    return _blocks(8, 32, _looked_up(IQ4_NL.kvalues, _nibbles(blocks[..., 2:])), _halves(blocks[..., :2]))


def _iq4_xs(data: _Bytes) -> Blocks:
    """256 weights in 8 blocks as in IQ4_NL: a float16 d, high 2 and low 4 bits of scales s; d * (s - 32) * table[q]."""
    from gguf.quants import IQ4_NL

    blocks = data.reshape(len(data), -1, 136)
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    high = (blocks[..., 2:4, None] >> _SHIFTS_BY_2[:, 0]) & np.uint8(3)
    six = (low | (high.reshape(low.shape) << np.uint8(4))).reshape(*blocks.shape[:2], 8).astype(np.float32) - 32
    scales = _halves(blocks[..., :2])[..., None] * six
    return _blocks(8, 32, _looked_up(IQ4_NL.kvalues, _nibbles(blocks[..., 8:].reshape(*scales.shape, 16))), scales)


def _mxfp4(data: _Bytes) -> Blocks:
    """32 weights: a power of 2 as its exponent, 255 for NaN, 16 bytes of places in a table of doubles, as in Q4_0."""
    from gguf.quants import MXFP4

    blocks = data.reshape(len(data), -1, 17)
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    scales[blocks[..., 0] == 255] = np.nan
    return _blocks(8, 32, _looked_up(MXFP4.kvalues, _nibbles(blocks[..., 1:])), scales)


_BLOCKS: dict[str, Callable[[_Bytes], Blocks]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
GGUF_TYPES = (*FLOATS, *_BLOCKS)
"""The types of matrices that are read."""

_SHIFTS_BY_1 = np.arange(8, dtype=np.uint8)[:, None]
_SHIFTS_BY_2 = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def _scales_and_minima(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """Of the 8 blocks in each of Q4_K and Q5_K: (N, K / 32)."""
    from gguf.quants import Q4_K

    s, m = (of.reshape(*blocks.shape[:2], 8) for of in Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12)))
    scales = _halves(blocks[..., :2])[..., None] * s.astype(np.float32)
    minima = _halves(blocks[..., 2:4])[..., None] * m.astype(np.float32)
    return scales.reshape(len(blocks), -1), minima.reshape(len(blocks), -1)


def _fifth(bits: _Bytes, low: _Bytes) -> _Bytes:
    """Codes of 5 bits: the fifth ones in the order of the codes, the others as in Q4_0."""
    fifth = np.unpackbits(bits, axis=-1, bitorder="little")
    return _nibbles(low) | (fifth << np.uint8(4))


def _pairs(data: _Bytes) -> _Bytes:
    """256 codes of 2 bits in 64 bytes: of 32 bytes first all lowest pairs of bits, then the next ones."""
    pairs = (data.reshape(*data.shape[:-1], 2, 1, 32) >> _SHIFTS_BY_2) & np.uint8(3)
    return pairs.reshape(*data.shape[:-1], 256)


def _looked_up(table: Sequence[int], codes: _Bytes) -> _Bytes:
    """Entries of a table of signed bytes, as codes of 8 bits."""
    return (np.array(table) + 128).astype(np.uint8)[codes]


def _halves(data: _Bytes) -> _Floats:
    """(..., 2) bytes as float16, (...) in float32."""
    return np.ascontiguousarray(data).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(data: _Bytes) -> _Bytes:
    """(..., bytes): first all low nibbles, then all high ones, (..., 2 * bytes)."""
    return np.concatenate((data & np.uint8(15), data >> np.uint8(4)), axis=-1)
