"""Products with quantized matrices, and their rows, to the bit: what QuantizedMatMul and QuantizedGather are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

NAN = np.uint32(0x7FC00000).view(np.float32)


def quantized_matmul(
    attributes: Mapping[str, int],
    x: np.ndarray,
    panels: np.ndarray,
    scales: np.ndarray,
    minima: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """y (..., N). The call must be legal."""
    n, bits, block = attributes["N"], attributes["bits"], attributes["block_size"]
    rows = gated(x.reshape(-1, x.shape[-1]), attributes.get("gate", 0))
    q, sa = activation_codes(rows, block, attributes["activation_bits"])
    zero = 0 if minima is not None else 1 << (bits - 1)
    u = matrix_codes(panels, n, bits, block) - zero
    scale = by_columns(scales, n)
    c = np.zeros((len(q), n), np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for b in range(u.shape[1]):
            total = (q[:, b] @ u[:, b].T).astype(np.float32)  # (M, N), exact before the cast
            c = fma(total, scale[:, b] * sa[:, b, None], c)
            if minima is not None:
                z = q[:, b].sum(axis=1).astype(np.float32)
                c = fma(by_columns(minima, n)[:, b], (sa[:, b] * z)[:, None], c)
        y = c if bias is None else c + bias
    return np.where(np.isnan(y), NAN, y).reshape(*x.shape[:-1], n)


def quantized_gather(
    attributes: Mapping[str, int],
    indices: np.ndarray,
    panels: np.ndarray,
    scales: np.ndarray,
    minima: np.ndarray | None = None,
) -> np.ndarray:
    """y, the shape of indices and K. The call must be legal."""
    n, k, bits, block = (attributes[name] for name in ("N", "K", "bits", "block_size"))
    u = matrix_codes(panels, n, bits, block)
    scale = by_columns(scales, n)[..., None]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if minima is None:
            rows = (u - (1 << (bits - 1))).astype(np.float32) * scale
        else:
            rows = fma(scale, u.astype(np.float32), by_columns(minima, n)[..., None])
    rows = np.where(np.isnan(rows), NAN, rows)
    return rows.reshape(n, -1)[:, :k][indices]


def gated(x: np.ndarray, gate: int) -> np.ndarray:
    """The rows (M, K) that gates, the first half of rows (M, 2K), make of the other half; or x for gate 0."""
    if gate == 0:
        return x
    g, second = np.split(x, 2, axis=1)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        t = g if gate == 1 else g * fma(g * g, np.float32(0.071354814), np.float32(1.5957692))
        e = exp(-np.abs(t))
        return np.where(t < 0, g * e, g) / (np.float32(1) + e) * second


def exp(v: np.ndarray) -> np.ndarray:
    """e^v of v <= 0, by the definition's operations."""
    ln_2 = [np.float32(0.6933594), np.float32(-2.1219444e-4)]
    whole = np.maximum(v, np.float32(-100))  # below -87.33654 e is 0
    n = np.rint(np.float64(whole) * np.float64(np.float32(1.442695))).astype(np.float32)
    r = fma(n, -ln_2[1], fma(n, -ln_2[0], whole))
    p = np.full_like(v, 0.001392625)
    for coefficient in (0.008363233, 0.041666552, 0.16666576, 0.5):
        p = fma(p, r, np.float32(coefficient))
    power = np.exp2(n)
    return np.where(v < np.float32(-87.33654), np.float32(0), fma(fma(p * r, r, r), power, power))


def activation_codes(x: np.ndarray, block: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The codes (M, B, block) of rows (M, K), int64, 0 past K, and the scales (M, B)."""
    top = np.float32((1 << (bits - 1)) - 1)
    blocks = -(-x.shape[1] // block)
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), blocks, block)
    finite = np.isfinite(padded).all(axis=-1)
    padded = np.where(finite[..., None], padded, np.float32(0))
    size = np.maximum(np.abs(padded).max(axis=-1), np.float32(2.0**-100))
    codes = np.rint(padded * (top / size)[..., None])  # float32, half to even
    assert codes.dtype == np.float32
    return codes.astype(np.int64), np.where(finite, size / top, NAN)


def matrix_codes(panels: np.ndarray, n: int, bits: int, block: int) -> np.ndarray:
    """The unsigned codes (N, B, block), int64."""
    codes = np.empty((n, panels.shape[1], block), np.int64)
    lines = block * bits // 32  # of 64 bytes
    for column in range(n):
        for k in range(block):
            line = k // 4 % lines
            byte = panels[column // 16, :, 64 * line + 4 * (column % 16) + k % 4]
            codes[column, :, k] = byte if bits == 8 else (byte >> 4 if k // 4 >= lines else byte & 15)
    return codes


def by_columns(values: np.ndarray, n: int) -> np.ndarray:
    """Scales or minima (P, B, 16) as (N, B)."""
    return values.transpose(0, 2, 1).reshape(-1, values.shape[1])[:n]


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once: the product is exact in float64, the sum is rounded to odd there."""
    p, c = np.float64(a) * np.float64(b), np.float64(c)
    total = p + c
    of_c = total - p
    error = (p - (total - of_c)) + (c - of_c)
    inexact_even = np.isfinite(total) & (error != 0) & (total.view(np.int64) % 2 == 0)
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact_even, odd, total).astype(np.float32)
