// Element types, and conversions between float types, with the bits of NaNs as on the CPU.
#pragma once

#include "machine.cuh"

// Floats have the bits of infinity, the bit of a quiet NaN, and 1e-5 rounded to the type, the least scale.
struct F32 {
    using Bits = u32;
    static constexpr u32 BITS = 32, INF = 0x7f800000, QUIET = 0x00400000, SCALE_FLOOR = 0x3727c5ac;
};

struct F16 {
    using Bits = u16;
    static constexpr u32 BITS = 16, INF = 0x7c00, QUIET = 0x0200, SCALE_FLOOR = 168;
};

// The high half of F32.
struct BF16 {
    using Bits = u16;
    static constexpr u32 BITS = 16, INF = 0x7f80, QUIET = 0x0040, SCALE_FLOOR = 0x3728;
};

// Codes have the value that a group's largest magnitude is divided by: the largest code, or -lowest of int4.
struct I8 {
    using Bits = u8;
    static constexpr u32 BITS = 8;
    static constexpr float QMAX = 127.0f;
};

// float8e4m3fn: a sign, 4 bits of exponent, 3 of mantissa; 0x7f and 0xff are NaN.
struct F8 {
    using Bits = u8;
    static constexpr u32 BITS = 8;
    static constexpr float QMAX = 448.0f;
};

// Two codes a byte, the first in the low nibble.
struct I4 {
    using Bits = u8;
    static constexpr u32 BITS = 4;
    static constexpr float QMAX = 8.0f;
};

// The type of `scale` without quantization.
struct None {
    using Bits = u8;
    static constexpr u32 BITS = 8;
};

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

// Float32 as bits, rounded to bfloat16: to nearest, ties to even. A NaN becomes quiet.
__device__ __forceinline__ u16 bfloat16_of(u32 bits) {
    const u32 nearest = bits + 0x7fff + (bits >> 16 & 1);
    return (bits & 0x7fffffff) > F32::INF ? bits >> 16 | 0x0040 : nearest >> 16;
}

// Converts a float, as bits, to another type or the same: an assignment. A NaN that is converted becomes quiet, and
// keeps its sign and the payload that fits, as on the CPU.
template <class To, class From>
__device__ __forceinline__ typename To::Bits convert(typename From::Bits from) {
    if constexpr (SAME<To, From>) {
        return from;
    } else if constexpr (SAME<From, BF16>) {
        return convert<To, F32>(static_cast<u32>(from) << 16);
    } else if constexpr (SAME<To, BF16>) {
        return bfloat16_of(convert<F32, From>(from));
    } else if constexpr (SAME<From, F16>) {
        const u32 magnitude = from & 0x7fff;
        const u32 nan = (from & 0x8000u) << 16 | 0x7fc00000 | (magnitude & 0x3ff) << 13;
        return magnitude > F16::INF ? nan : __float_as_uint(half_to_float(from));
    } else {
        const u32 magnitude = from & 0x7fffffff;
        const u32 nan = (from >> 16 & 0x8000) | 0x7e00 | (magnitude >> 13 & 0x3ff);
        return magnitude > F32::INF ? static_cast<u16>(nan) : float_to_half(__uint_as_float(from));
    }
}

// The value of a float that is given as bits; a NaN may lose its payload.
template <class T>
__device__ __forceinline__ float value_of(typename T::Bits bits) {
    if constexpr (SAME<T, F16>) {
        return half_to_float(bits);
    } else if constexpr (SAME<T, BF16>) {
        return __uint_as_float(static_cast<u32>(bits) << 16);
    } else {
        return __uint_as_float(bits);
    }
}

// A number rounded to T, as bits; a NaN may lose its payload.
template <class T>
__device__ __forceinline__ typename T::Bits bits_of(float x) {
    if constexpr (SAME<T, F16>) {
        return float_to_half(x);
    } else if constexpr (SAME<T, BF16>) {
        return bfloat16_of(__float_as_uint(x));
    } else {
        return __float_as_uint(x);
    }
}

// A number rounded to T.
template <class T>
__device__ __forceinline__ float rounded(float x) {
    return value_of<T>(bits_of<T>(x));
}
