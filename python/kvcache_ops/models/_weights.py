"""Weights as a model has them: floats, or blocks of codes with their scales and offsets, taken from GGUF's blocks.

Nothing is dequantized, and nothing is rounded but offsets, to float32: the codes are those of the file in ONNX's order,
around zero, so that activations that are rounded to 8 bits lose as little as they can. `Blocks.in_8_bits` is for speed.
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
    """A matrix (N, K) of codes in blocks along K: a weight is scale * (code - zero) + offset.

    codes: (N, K / block, block * bits / 8), of 4 bits the first in the low nibble. scales: (N, K / block).
    offsets: (N, K / block), or None where all are zero. zeros: (N, K / block), or None where all are 2^(bits - 1).
    """

    bits: int
    block: int
    codes: _Bytes
    scales: _Floats
    offsets: _Floats | None = None
    zeros: _Bytes | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, order: NDArray[np.intp]) -> Blocks:
        """These rows, in this order."""
        return replace(self, **{name: values[order] for name, values in self.arrays.items()})

    @property
    def arrays(self) -> dict[str, Any]:
        """Those that there are, by name."""
        every = {name: getattr(self, name) for name in ("codes", "scales", "offsets", "zeros")}
        return {name: values for name, values in every.items() if values is not None}

    @property
    def format(self) -> tuple[int, int, set[str]]:
        """The properties that two matrices must share to be stacked."""
        return self.bits, self.block, set(self.arrays)

    def in_8_bits(self) -> Blocks:
        """The same weights in codes of 8 bits.

        Offsets become zeros, which rounds them to 1/16 of a step of 4 bits and 1/8 of one of 5, unless a block has all
        of its weights on one side of zero: then the matrix keeps its offsets.
        """
        codes = self.codes
        if self.bits == 4:
            codes = _unpack(codes) + np.uint8(128 - 8)
        if self.offsets is not None:
            finer = {4: 16, 8: 8}[self.bits]  # codes of 8 bits that have offsets were of 5
            with np.errstate(divide="ignore"):
                steps = np.divide(self.offsets, self.scales, out=np.zeros_like(self.scales), where=self.offsets != 0)
            zeros = np.round(128 - finer * steps)
            if ((zeros >= 0) & (zeros <= 255)).all():
                codes = (codes - np.uint8(128)) * np.uint8(finer) + np.uint8(128)
                return Blocks(8, self.block, codes, self.scales / np.float32(finer), zeros=zeros.astype(np.uint8))
        return replace(self, bits=8, codes=codes)


Weight = Dense | Blocks


def stack(weights: Sequence[Weight]) -> list[Weight]:
    """The same matrices, one above the other where all have one format; else as they are."""
    first = weights[0]
    if isinstance(first, Blocks):
        blocks = [weight for weight in weights if isinstance(weight, Blocks) and weight.format == first.format]
        if len(blocks) == len(weights):
            joined: dict[str, Any] = {name: np.concatenate([b.arrays[name] for b in blocks]) for name in first.arrays}
            return [replace(first, **joined)]
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

    The embedding and the head are given int8 where int4 is asked for. A quantized matrix other than the embedding
    gets codes of 8 bits for int8. Raises KvCacheError "weights_quantized" for other types of a quantized matrix, and
    "tensor_shape" for rows that are not whole blocks of 32.
    """
    if weights == "auto":
        return weight
    if isinstance(weight, Blocks):
        if weights == "int8":
            return weight if name == "token_embd.weight" else weight.in_8_bits()
        message = f"{name} is quantized in the file, expected weights to be 'auto' or 'int8', got {weights!r}"
        raise KvCacheError(message, "weights_quantized")
    if weights in ("float32", "float16"):
        return Dense(weight.values.astype(weights))
    from gguf import GGMLQuantizationType, quants

    if weight.values.shape[-1] % 32:
        message = f"{name} has {weight.values.shape[-1]} columns, expected a multiple of 32 for weights {weights!r}"
        raise KvCacheError(message, "tensor_shape")
    kind = "Q4_0" if weights == "int4" and name.startswith("blk.") else "Q8_0"
    return from_gguf(kind, quants.quantize(weight.values.astype(np.float32), GGMLQuantizationType[kind]))


def _q8_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 32 signed bytes q; d * q."""
    blocks = data.reshape(len(data), -1, 34)
    return Blocks(8, 32, blocks[..., 2:] ^ np.uint8(0x80), _halves(blocks[..., :2]))


def _q4_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 16 bytes, the first 16 codes q in their low nibbles; d * (q - 8)."""
    blocks = data.reshape(len(data), -1, 18)
    return Blocks(4, 32, _pack(_nibbles(blocks[..., 2:])), _halves(blocks[..., :2]))


def _q4_1(data: _Bytes) -> Blocks:
    """32 weights: float16 d and m, 16 bytes as in Q4_0; d * q + m."""
    blocks = data.reshape(len(data), -1, 20)
    scales, minima = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return Blocks(4, 32, _pack(_nibbles(blocks[..., 4:])), scales, 8 * scales + minima)


def _q5_0(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 32 fifth bits, 16 bytes as in Q4_0; d * (q - 16)."""
    blocks = data.reshape(len(data), -1, 22)
    return Blocks(8, 32, _fifth(blocks[..., 2:6], blocks[..., 6:]) + np.uint8(128 - 16), _halves(blocks[..., :2]))


def _q5_1(data: _Bytes) -> Blocks:
    """32 weights: float16 d and m, 32 fifth bits, 16 bytes as in Q4_0; d * q + m."""
    blocks = data.reshape(len(data), -1, 24)
    scales, minima = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return Blocks(8, 32, _fifth(blocks[..., 4:8], blocks[..., 8:]) + np.uint8(128 - 16), scales, 16 * scales + minima)


def _q2_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: 4 bits each of scales s and minima m, codes of 2 bits, float16 d and dmin."""
    blocks = data.reshape(len(data), -1, 84)
    scales = _halves(blocks[..., 80:82])[..., None] * (blocks[..., :16] & np.uint8(15))
    minima = _halves(blocks[..., 82:])[..., None] * (blocks[..., :16] >> np.uint8(4))
    codes = _pairs(blocks[..., 16:80]) + np.uint8(8 - 2)
    scales, minima = scales.reshape(len(data), -1), minima.reshape(len(data), -1)
    return Blocks(4, 16, _pack(codes.reshape(*scales.shape, 16)), scales, 2 * scales - minima)


def _q3_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: third bits of codes q, two lower ones, 6 bits each of scales s, a float16 d.

    d * (s - 32) * (q - 4).
    """
    blocks = data.reshape(len(data), -1, 110)
    third = (blocks[..., None, :32] >> _SHIFTS_BY_1) & np.uint8(1)
    codes = _pairs(blocks[..., 32:96]) + (third.reshape(*blocks.shape[:2], 256) << np.uint8(2)) + np.uint8(4)
    high = ((blocks[..., None, 104:108] >> _SHIFTS_BY_2) & np.uint8(3)).reshape(*blocks.shape[:2], 16)
    six = (_nibbles(blocks[..., 96:104]) | (high << np.uint8(4))).astype(np.float32) - 32
    scales = (_halves(blocks[..., 108:])[..., None] * six).reshape(len(data), -1)
    return Blocks(4, 16, _pack(codes.reshape(*scales.shape, 16)), scales)


def _q4_k(data: _Bytes) -> Blocks:
    """256 weights in 8 blocks: float16 d and dmin, 6 bits each of scales s and minima m; d * s * q - dmin * m."""
    blocks = data.reshape(len(data), -1, 144)
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[..., 16:].reshape(len(data), -1, 32))  # the next 32 codes are in the high nibbles
    return Blocks(4, 32, _pack(codes.reshape(*scales.shape, 32)), scales, 8 * scales - minima)


def _q5_k(data: _Bytes) -> Blocks:
    """256 weights as in Q4_K, and 256 fifth bits before the others."""
    blocks = data.reshape(len(data), -1, 176)
    scales, minima = _scales_and_minima(blocks)
    fifth = ((blocks[..., None, 16:48] >> _SHIFTS_BY_1) & np.uint8(1)) << np.uint8(4)
    low = _nibbles(blocks[..., 48:].reshape(len(data), -1, 32))
    codes = (low.reshape(*scales.shape, 32) | fifth.reshape(*scales.shape, 32)) + np.uint8(128 - 16)
    return Blocks(8, 32, codes, scales, 16 * scales - minima)


def _q6_k(data: _Bytes) -> Blocks:
    """256 weights in 16 blocks: low 4 and high 2 bits of codes q, signed bytes s, a float16 d; d * s * (q - 32)."""
    blocks = data.reshape(len(data), -1, 210)
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(*blocks.shape[:2], 256)
    codes: _Bytes = (low | (_pairs(blocks[..., 128:192]) << np.uint8(4))) + np.uint8(128 - 32)
    scales = _halves(blocks[..., 208:])[..., None] * blocks[..., 192:208].view(np.int8).astype(np.float32)
    scales = scales.reshape(len(data), -1)
    return Blocks(8, 16, codes.reshape(*scales.shape, 16), scales)


def _iq4_nl(data: _Bytes) -> Blocks:
    """32 weights: a float16 d, 16 bytes as in Q4_0, whose codes are places in a table of signed bytes; d * table[q]."""
    from gguf.quants import IQ4_NL

    blocks = data.reshape(len(data), -1, 18)
    return Blocks(8, 32, _looked_up(IQ4_NL.kvalues, _nibbles(blocks[..., 2:])), _halves(blocks[..., :2]))


def _iq4_xs(data: _Bytes) -> Blocks:
    """256 weights in 8 blocks as in IQ4_NL: a float16 d, high 2 and low 4 bits of scales s; d * (s - 32) * table[q]."""
    from gguf.quants import IQ4_NL

    blocks = data.reshape(len(data), -1, 136)
    low = (blocks[..., 4:8, None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    high = (blocks[..., 2:4, None] >> _SHIFTS_BY_2[:, 0]) & np.uint8(3)
    six = (low | (high.reshape(low.shape) << np.uint8(4))).reshape(*blocks.shape[:2], 8).astype(np.float32) - 32
    scales = (_halves(blocks[..., :2])[..., None] * six).reshape(len(data), -1)
    return Blocks(8, 32, _looked_up(IQ4_NL.kvalues, _nibbles(blocks[..., 8:].reshape(*scales.shape, 16))), scales)


def _mxfp4(data: _Bytes) -> Blocks:
    """32 weights: a power of 2 as its exponent, 16 bytes as in Q4_0, whose codes are places in a table of doubles."""
    from gguf.quants import MXFP4

    blocks = data.reshape(len(data), -1, 17)
    scales = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128)
    return Blocks(8, 32, _looked_up(MXFP4.kvalues, _nibbles(blocks[..., 1:])), scales)


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


def _unpack(codes: _Bytes) -> _Bytes:
    """What `_pack` was given."""
    return np.stack((codes & np.uint8(15), codes >> np.uint8(4)), axis=-1).reshape(*codes.shape[:-1], -1)


def _pack(codes: _Bytes) -> _Bytes:
    """Codes of 4 bits along the last axis, two in a byte, the first in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
