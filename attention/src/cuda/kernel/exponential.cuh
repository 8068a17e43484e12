// e^x and tanh x, of operations that are rounded to nearest alone: the same bits on every GPU, and on the CPU.
#pragma once

#include "machine.cuh"

constexpr float LOG2_E = 1.44269504f;
// ln 2 in two parts, the first of few bits: its product with a small integer is exact.
constexpr float LN_2_HIGH = 0.693359375f;
constexpr float LN_2_LOW = -2.12194440e-4f;
constexpr float LN_2 = 0.693147181f;
// 1.5 * 2^23: floats of this magnitude are integers.
constexpr float ROUND = 12582912.0f;
// ln 2^-126, of the smallest normal number.
constexpr float LEAST_EXPONENT = -87.3365402f;

// e^r - 1, for |r| <= ln 2 / 2.
__device__ __forceinline__ float exponential_less_one(float r) {
    float sum = 1.98756915e-4f;
    sum = __fmaf_rn(sum, r, 1.39819995e-3f);
    sum = __fmaf_rn(sum, r, 8.33345191e-3f);
    sum = __fmaf_rn(sum, r, 4.16657959e-2f);
    sum = __fmaf_rn(sum, r, 1.66666655e-1f);
    sum = __fmaf_rn(sum, r, 5.00000012e-1f);
    return __fmaf_rn(__fmul_rn(sum, r), r, r);
}

// 2^n, for n from -126 to 127.
__device__ __forceinline__ float power_of_two(float n) {
    // n + ROUND and n have the same low bits.
    const u32 exponent = __float_as_uint(__fadd_rn(n, ROUND)) - __float_as_uint(ROUND) + 127;
    return __uint_as_float(exponent << 23);
}

// 2^n * e^r, for n from -126 to 127 and |r| <= ln 2 / 2.
__device__ __forceinline__ float scaled_exponential(float n, float r) {
    return __fmul_rn(__fadd_rn(exponential_less_one(r), 1.0f), power_of_two(n));
}

// x - n * ln 2.
__device__ __forceinline__ float without_multiple(float x, float n) {
    return __fmaf_rn(n, -LN_2_LOW, __fmaf_rn(n, -LN_2_HIGH, x));
}

// e^x for x <= 0, within 2 units in the last place; 1 for 0, 0 where it is less than the smallest normal number, and
// NaN for NaN.
__device__ __forceinline__ float exponential(float x) {
    if (!(x >= LEAST_EXPONENT)) {
        return x == x ? 0.0f : x;
    }
    const float n = __fadd_rn(__fmaf_rn(x, LOG2_E, ROUND), -ROUND);
    return scaled_exponential(n, without_multiple(x, n));
}

// tanh x, within 4 units in the last place; NaN for NaN. It has the sign of x and the magnitude of m / (m + 2), where m
// is e^(-2 |x|) - 1.
__device__ __forceinline__ float hyperbolic_tangent(float x) {
    constexpr u32 SIGN = 1u << 31;
    const float magnitude = __uint_as_float(__float_as_uint(x) & ~SIGN);
    const float y = __fmul_rn(-2.0f, magnitude > 10.0f ? 10.0f : magnitude);
    const float n = __fadd_rn(__fmaf_rn(y, LOG2_E, ROUND), -ROUND);
    const float power = power_of_two(n);
    const float m = __fmaf_rn(exponential_less_one(without_multiple(y, n)), power, __fadd_rn(power, -1.0f));
    const float ratio = __fdiv_rn(m, __fadd_rn(m, 2.0f));
    return __uint_as_float((__float_as_uint(ratio) & ~SIGN) | (__float_as_uint(x) & SIGN));
}

// ALiBi's slope of query head h: with c the largest power of two that is at most the number of heads, 2^(-8k/c) for k =
// 1 to c, then 2^(-4k/c) for k = 1, 3, 5 and so on.
__device__ __forceinline__ float alibi_slope(u32 h, u32 c) {
    const u32 eighths = h < c ? 8 * (h + 1) : 4 * (2 * (h - c) + 1);
    // Exact: c is a power of two.
    const float y = -__fdiv_rn(static_cast<float>(eighths), static_cast<float>(c));
    const float n = __fadd_rn(__fadd_rn(y, ROUND), -ROUND);
    return scaled_exponential(n, __fmul_rn(__fadd_rn(y, -n), LN_2));
}
