"""Quantized matrices in panels: QuantizedMatMul and QuantizedGather on numpy arrays, without ONNX Runtime.

Tensors are as in `kvcache_ops.run`; those that are read may be of any other library that exports versioned DLPack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError

if TYPE_CHECKING:
    from kvcache_ops.ops._operators import Tensor

OWN_DOMAIN = "kvcache_ops"
"""The domain of these operators."""

_PANEL = 16  # columns
_PANELS_AT_ONCE = 256


def pack_panels(codes: NDArray[np.uint8], *, bits: int, block_size: int) -> NDArray[np.uint8]:
    """The panels of a matrix (N, K) of unsigned codes, one in a byte: (P, B, block_size * bits * 2).

    bits: 4 or 8. block_size: 16 or 32. P is ceil(N / 16), B ceil(K / block_size).

    Raises KvCacheError: "attribute_out_of_range", "rank_mismatch", and "code_range" for a code of more bits.
    """
    for name, got, expected in (("bits", bits, (4, 8)), ("block_size", block_size, (16, 32))):
        if got not in expected:
            raise KvCacheError(f"{name} is {got!r}, expected one of {expected}", "attribute_out_of_range")
    if codes.ndim != 2 or codes.dtype != np.uint8:
        message = f"codes have the type {codes.dtype} and the shape {codes.shape}, expected uint8 and (N, K)"
        raise KvCacheError(message, "rank_mismatch")
    if codes.size and codes.max() >> bits:
        raise KvCacheError(f"codes have {codes.max()}, expected less than {1 << bits}", "code_range")
    n, k = codes.shape
    blocks = -(-k // block_size)
    panels = np.empty((-(-n // _PANEL), blocks, block_size * bits * 2), np.uint8)
    for first in range(0, len(panels), _PANELS_AT_ONCE):
        some = panels[first : first + _PANELS_AT_ONCE]
        given = codes[first * _PANEL : (first + len(some)) * _PANEL]
        padded = np.pad(given, ((0, len(some) * _PANEL - len(given)), (0, blocks * block_size - k)))
        lines = padded.reshape(len(some), _PANEL, blocks, block_size // 4, 4).transpose(0, 2, 3, 1, 4)
        if bits == 4:
            half = block_size // 8
            lines = lines[:, :, :half] | lines[:, :, half:] << np.uint8(4)
        some[...] = lines.reshape(some.shape)
    return panels


def pack_scales(scales: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Scales or minima (N, B) of blocks as the operators take them: (P, B, 16) of float32."""
    padded = np.pad(scales.astype(np.float32), ((0, -len(scales) % _PANEL), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, _PANEL, scales.shape[1]).transpose(0, 2, 1))


def quantized_matmul(
    attributes: Mapping[str, int],
    x: Tensor,
    panels: Tensor,
    scales: Tensor,
    minima: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    y: Tensor | None = None,
) -> Any:
    """QuantizedMatMul: float32 rows (..., K) times the transpose of a quantized matrix (N, K), (..., N).

    With the attribute gate, 1 for SiLU or 2 for GELU, x is (..., 2K): its first half gates its second.

        panels = pack_panels(codes, bits=4, block_size=32)
        y = quantized_matmul(dict(N=N, K=K, bits=4, block_size=32, activation_bits=16), x, panels, pack_scales(scales))

    panels: uint8 (P, B, block_size * bits * 2). scales, minima: float32 (P, B, 16). bias: float32 (N). y: where to
    write the output; a new numpy array if it is None. An element has the same bits whatever rows are beside it.

    Returns y. Raises KvCacheError with the library's sentence and its `kind`; nothing is then written.
    """
    return _native.run("QuantizedMatMul", dict(attributes), [x, panels, scales, minima, bias], [y])[0]


def quantized_gather(
    attributes: Mapping[str, int],
    indices: Tensor,
    panels: Tensor,
    scales: Tensor,
    minima: Tensor | None = None,
    *,
    y: Tensor | None = None,
) -> Any:
    """QuantizedGather: the rows `indices` (int64, any shape) of a quantized matrix (N, K) as float32, (..., K).

    attributes: N, K, bits, block_size. The other tensors are as in `quantized_matmul`.

    Returns y. Raises KvCacheError; nothing is then written.
    """
    return _native.run("QuantizedGather", dict(attributes), [indices, panels, scales, minima], [y])[0]
