"""The arithmetic of one quantization group. Every step is rounded to the type named beside it."""

from __future__ import annotations

import numpy as np
from ml_dtypes import float8_e4m3fn

from .portable import converted, plain_nan


def quantize(x: np.ndarray, quant_bit: int, codes: type[np.generic]) -> tuple[np.ndarray, np.floating]:
    """The codes q (quant_group), int8 or float8, and the step s, a T1, of the neighbors x (quant_group) of T1."""
    T1 = x.dtype.type
    if quant_bit == 4:
        return sixteen_levels(x)
    qmax = 448 if codes is float8_e4m3fn else 127
    with np.errstate(invalid="ignore"):  # NaN and Inf propagate to the group
        amax = np.max(np.abs(x))  # T1, exact
        s = plain_nan(np.maximum(amax / T1(qmax), T1(1e-5)))  # T1; a NaN stays
        quotient = x / s  # T1; Inf / Inf is NaN
        is_beyond = np.any(np.abs(quotient) > 464)
    if codes is float8_e4m3fn:
        assert not is_beyond, "ml_dtypes makes NaN of what is beyond the largest number"
        return np.where(np.isfinite(s), quotient, T1(0)).astype(codes), s  # half to even
    rounded = np.rint(quotient)  # half to even
    q = np.minimum(np.maximum(rounded, T1(-qmax)), T1(qmax))  # np.clip makes float32 of bfloat16
    q = np.where(np.isnan(q), T1(0), q)
    assert amax.dtype == s.dtype == quotient.dtype == q.dtype == x.dtype, "nothing is promoted"
    return q.astype(np.int8), s


def sixteen_levels(x: np.ndarray) -> tuple[np.ndarray, np.floating]:
    """`quantize` with 4 bits: the step's sign makes the code of the largest element -8."""
    T1 = x.dtype.type
    with np.errstate(invalid="ignore"):  # NaN and Inf propagate to the group
        up, down = np.max(x), np.max(-x)  # T1, exact; a NaN stays
        size = plain_nan(np.maximum(np.maximum(up, down) / T1(8), T1(1e-5)))  # T1; a NaN stays
        s = -size if up > down else size  # a tie and a group of zeros have a positive step
        quotient = x / s  # T1; Inf / Inf is NaN
    q = np.minimum(np.rint(quotient), T1(7)) if np.isfinite(size) else np.zeros_like(x)  # half to even
    assert s.dtype == quotient.dtype == q.dtype == x.dtype, "nothing is promoted"
    assert np.all(q >= -8)
    return q.astype(np.int8), s


def static_codes(x: np.ndarray, scale: np.floating) -> np.ndarray:
    """The float8 codes (Dh) of the head x (Dh) of T1 with its static scale, a T3."""
    x, s = x.astype(np.float32), np.float32(scale)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # 0 / 0; x / 0
        quotient = np.abs(x) / np.abs(s)  # float32
    saturated = np.minimum(quotient, np.float32(448))  # a NaN stays
    magnitude = saturated.astype(float8_e4m3fn).view(np.uint8) & 0x7F  # half to even
    sign = (np.signbit(x) ^ np.signbit(s)).astype(np.uint8) << 7
    return (magnitude | sign).view(float8_e4m3fn)


def dequantize(q: np.ndarray, scale: np.floating, T1: type[np.floating]) -> np.ndarray:
    """The T1 values (quant_group) that the codes q (quant_group), int8 or float8, stand for with their scale, a T3;
    where T1 is float64, which has room for it, the product itself."""
    if T1 is np.float64:
        scale = scale.astype(np.float64)
    T3 = scale.dtype.type
    with np.errstate(invalid="ignore", over="ignore"):  # 0 * Inf; products beyond float16
        product = plain_nan(q.astype(T3) * scale)  # T3
    assert product.dtype == T3, "nothing is promoted"
    return converted(product, T1)
