// The arithmetic of quantized groups; the bits are quantize.rs's. `Codes` is the cache's element type: I8, I4, F8.
#pragma once

#include "elements.cuh"

// The bits of |x|. As integers they are ordered as the magnitudes are, with NaN above infinity.
template <class T>
__device__ __forceinline__ u32 magnitude(typename T::Bits x) {
    return x & (T::BITS == 16 ? 0x7fffu : 0x7fffffffu);
}

// The sign moved from the top to the bottom: the order of magnitudes, and of two that are equal the negative one is the
// larger.
__device__ __forceinline__ u32 with_sign_last(u32 bits) { return __funnelshift_l(bits, bits, 1); }

// The key by which a group's largest value is found: its magnitude, or for int4 its bits at the top of a word, the sign
// last. A signaling float16 NaN counts as the quiet one that it becomes in float32, where quantize.rs compares; for int4
// any NaN may be the group's.
template <class T, class Codes>
__device__ __forceinline__ u32 rank(typename T::Bits x) {
    if constexpr (SAME<Codes, I4>) {
        return with_sign_last(static_cast<u32>(x) << (32 - T::BITS));
    }
    const u32 size = magnitude<T>(x);
    return SAME<T, F16> && size > F16::INF ? size | F16::QUIET : size;
}

// A number that rounds to T as x / y does, given -y and the rounded reciprocal of y, for x and y in T: the code of a
// division without the instructions that a group's values share, and without those for very large and very small numbers.
// Only scales and codes are made from it: where |x / y| < 2^-20 its last bits may differ from a division's, but there
// the code is 0.
//
// Float32, and others whose numbers are some of its: the first correction makes the quotient faithful (within one unit
// in the last place), and from a faithful quotient and a correctly rounded reciprocal the second makes the correctly
// rounded one (Markstein's theorem, which needs y >= 1e-5, |x / y| >= 2^-20: no remainder underflows).
//
// Float16: a quotient is more than 2^-23 of itself away from a midpoint of two float16, and the product is closer.
template <class T>
__device__ __forceinline__ float unrounded_quotient(float x, float minus_y, float reciprocal) {
    float quotient = __fmul_rn(x, reciprocal);
    if constexpr (!SAME<T, F16>) {
        quotient = __fmaf_rn(__fmaf_rn(quotient, minus_y, x), reciprocal, quotient);
        quotient = __fmaf_rn(__fmaf_rn(quotient, minus_y, x), reciprocal, quotient);
    }
    return quotient;
}

// x / y, rounded to nearest as IEEE 754 division is and then to T, given -y.
template <class T>
__device__ __forceinline__ float divide(float x, float minus_y, float reciprocal) {
    const float quotient = unrounded_quotient<T>(x, minus_y, reciprocal);
    return rounded<T>(quotient);
}

// A group's scale in T1, with what computing its codes needs.
template <class T1>
struct Scale {
    typename T1::Bits bits;
    float negated;
    float reciprocal;
    // Whether it is infinite or NaN; then all codes are 0.
    bool non_finite;
};

// The scale of a group, given the rank of its largest value; for int4 the largest of these and of -0.
template <class T1, class Codes>
__device__ __forceinline__ Scale<T1> scale_of(u32 largest) {
    using Bits = typename T1::Bits;
    constexpr bool WITH_SIGN = SAME<Codes, I4>;
    const u32 amax = WITH_SIGN ? largest >> (33 - T1::BITS) : largest;
    // The largest value's other sign.
    const u32 sign = WITH_SIGN ? largest << (T1::BITS - 1) ^ 1u << (T1::BITS - 1) : 0;
    u32 bits;
    if (amax >= T1::INF) {
        bits = amax > T1::INF ? amax | T1::QUIET : amax ^ sign;
    } else if constexpr (WITH_SIGN) {
        bits = bits_of<T1>(__fmul_rn(value_of<T1>(static_cast<Bits>(amax)), 1.0f / Codes::QMAX));
        bits = (bits < T1::SCALE_FLOOR ? T1::SCALE_FLOOR : bits) ^ sign;
    } else {
        constexpr float RECIPROCAL = 1.0f / Codes::QMAX;
        // A quotient too small for `unrounded_quotient` is below the floor.
        bits = bits_of<T1>(unrounded_quotient<T1>(value_of<T1>(static_cast<Bits>(amax)), -Codes::QMAX, RECIPROCAL));
        bits = bits < T1::SCALE_FLOOR ? T1::SCALE_FLOOR : bits;
    }
    Scale<T1> scale;
    scale.bits = static_cast<Bits>(bits);
    scale.non_finite = amax >= T1::INF;
    const float value = value_of<T1>(scale.bits);
    scale.negated = -value;
    scale.reciprocal = __frcp_rn(value);
    return scale;
}

// The float8 nearest to a number of at most 464, ties to even, without its sign.
__device__ __forceinline__ u32 float8_of(float x) {
    constexpr u32 LEAST_NORMAL = 121 << 23;
    const u32 magnitude = __float_as_uint(x) & 0x7fffffff;
    const u32 exponent = max(magnitude & 0x7f800000, LEAST_NORMAL);
    // Adding a number 20 binades up rounds to float8's mantissa; the difference of the bits is the code.
    const u32 rounder = exponent + (20 << 23);
    const u32 places = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(rounder))) - rounder;
    return places + ((exponent - LEAST_NORMAL) >> 20);
}

// The code of x, in the low bits. The higher bits are arbitrary, and all are if the scale is not finite. A code of int4
// has 8 added, in the low 22 bits.
//
// Int8 needs no clamp: |x| <= amax, and the scale is amax / qmax up to its rounding (by less than 1 part in 336, since
// the smallest float16 scale is 168 units), or larger. So |x / scale| < qmax + 1/2. But a scale of no more digits than
// the largest codes have may be smaller by 1 part in 257, and x / 127 of it 127.5.
template <class T1, class Codes>
__device__ __forceinline__ u32 code_of(typename T1::Bits x, const Scale<T1>& scale) {
    float quotient = divide<T1>(value_of<T1>(x), scale.negated, scale.reciprocal);
    if constexpr (SAME<Codes, F8>) {
        return float8_of(quotient) | (x >> (T1::BITS - 8) & 0x80);
    }
    if constexpr (SAME<Codes, I4>) {
        // The sum with 8 is exact.
        return __float_as_uint(__fadd_rn(fminf(quotient, 7.0f), 12582920.0f));
    }
    // QUIET is the second bit of the significand.
    if constexpr (T1::QUIET < 1 << (I8::BITS - 1)) {
        quotient = quotient > 127.0f ? 127.0f : quotient < -127.0f ? -127.0f : quotient;
    }
    // 1.5 * 2^23: floats of this magnitude are integers, so the addition rounds to an integer, ties to even.
    return __float_as_uint(__fadd_rn(quotient, 12582912.0f));
}

// The float8 of x with a static scale, as static_code of quantize.rs.
template <class T1>
__device__ __forceinline__ u32 static_code_of(typename T1::Bits x, float scale) {
    const u32 bits = __float_as_uint(scale);
    const float quotient = __fdiv_rn(value_of<T1>(magnitude<T1>(x)), __uint_as_float(magnitude<F32>(bits)));
    const u32 number = quotient != quotient ? 0x7f : float8_of(quotient > F8::QMAX ? F8::QMAX : quotient);
    return number | ((x >> (T1::BITS - 8) ^ bits >> 24) & 0x80);
}

// Quotients of float16, which are rounded to integers by a sum with these halves, of 1.5 * 2^10 or a little more: float16
// of this magnitude are integers. Of int4 none is above 7.
template <class Codes>
__device__ __forceinline__ u32 pair_of_sums(u16 a, u16 b, const Scale<F16>& scale, u32 halves) {
    float x = unrounded_quotient<F16>(value_of<F16>(a), scale.negated, scale.reciprocal);
    float y = unrounded_quotient<F16>(value_of<F16>(b), scale.negated, scale.reciprocal);
    if constexpr (SAME<Codes, I4>) {
        x = fminf(x, 7.0f);
        y = fminf(y, 7.0f);
    }
    return add_halves(floats_to_halves(x, y), halves);
}

// The codes of a and b, each as code_of gives it, in the low bits of the halves of a word.
template <class T1, class Codes>
__device__ __forceinline__ u32 pair_of_codes(typename T1::Bits a, typename T1::Bits b, const Scale<T1>& scale) {
    if constexpr (SAME<T1, F16> && SAME<Codes, I8>) {
        return pair_of_sums<Codes>(a, b, scale, 0x66006600);
    } else {
        return __byte_perm(code_of<T1, Codes>(a, scale), code_of<T1, Codes>(b, scale), 0x5410);
    }
}

// The low bytes of the halves of two words.
__device__ __forceinline__ u32 bytes_of(u32 a, u32 b) { return __byte_perm(a, b, 0x6420); }

// N codes of int4, which `value` gives the values of by their numbers, in the low nibbles of a word.
template <class T1, u32 N, class Value>
__device__ __forceinline__ u32 nibbles_of(Value value, const Scale<T1>& scale) {
    if constexpr (SAME<T1, F16> && N == 8) {
        // In each four, 16 times the second and fourth code are added to the first and third. Halves have 8 more than
        // their codes, and 0x6600, whose 6 passes into the upper half.
        u32 words[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 firsts = pair_of_sums<I4>(value(4 * i), value(4 * i + 2), scale, 0x66026608);
            const u32 seconds = pair_of_sums<I4>(value(4 * i + 1), value(4 * i + 3), scale, 0x66086608);
            words[i] = seconds * 16 + firsts;
        }
        return bytes_of(words[0], words[1]) ^ 0x88888888;
    } else {
        u32 sum = 0, more = 0;
#pragma unroll
        for (u32 i = N; i-- > 0;) {
            sum = sum * 16 + code_of<T1, I4>(value(i), scale);
            // What is above the low 22 bits of the code.
            more = more * 16 + 0x4b400000;
        }
        return (sum - more) ^ 0x88888888;
    }
}

// Code i of a word, as a float.
template <class Codes>
__device__ __forceinline__ float code_in(u32 word, u32 i) {
    // As float32, 2^23 + n is 2^23 with n in its lowest bits; n is the code with its sign bit flipped.
    if constexpr (SAME<Codes, I8>) {
        const u32 bits = __byte_perm(word ^ 0x80808080, 0x4b000000, 0x7650 | i);
        return __fadd_rn(__uint_as_float(bits), -8388736.0f);
    } else if constexpr (SAME<Codes, F8>) {
        const u32 code = word >> 8 * i & 0xff, magnitude = code & 0x7f;
        // As float16 it is 1/256 of its value.
        const float number = __fmul_rn(half_to_float((code & 0x80) << 8 | magnitude << 7), 256.0f);
        return magnitude == 0x7f ? __uint_as_float((code & 0x80) << 24 | 0x7fc00000) : number;
    } else {
        const u32 bits = ((word ^ 0x88888888) >> 4 * i & 0xf) | 0x4b000000;
        return __fadd_rn(__uint_as_float(bits), -8388616.0f);
    }
}

// The value of a code, given the bits of its scale.
template <class T1, class T3>
__device__ __forceinline__ typename T1::Bits value_of_code(float code, typename T3::Bits scale) {
    if constexpr (SAME<T1, T3>) {
        return bits_of<T1>(__fmul_rn(code, value_of<T3>(scale)));
    } else {
        return bits_of<T1>(rounded<T3>(__fmul_rn(code, value_of<T3>(scale))));
    }
}

// The same for a scale that is infinite or NaN; `nan` is nan_of it.
template <class T1, class T3>
__device__ __forceinline__ typename T1::Bits value_at_non_finite_scale(float code, typename T3::Bits scale,
                                                                       typename T1::Bits nan) {
    const float product = __fmul_rn(code, value_of<T3>(scale));
    return product == product ? bits_of<T1>(product) : nan;
}

// The NaN that a product with this scale gives, as on an x86 CPU: the scale itself if it is one, or, for zero times
// infinity, the default NaN ("real indefinite").
template <class T1, class T3>
__device__ __forceinline__ typename T1::Bits nan_of(typename T3::Bits scale) {
    const u32 factor = convert<F32, T3>(scale);
    const bool is_nan = magnitude<F32>(factor) > F32::INF;
    return convert<T1, T3>(convert<T3, F32>(is_nan ? factor | F32::QUIET : 0xffc00000));
}

template <class T3>
__device__ __forceinline__ bool is_non_finite(typename T3::Bits scale) {
    return magnitude<T3>(scale) >= T3::INF;
}
