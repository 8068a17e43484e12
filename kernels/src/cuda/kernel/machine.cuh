// PTX instructions for which NVRTC's headers have no intrinsic.
#pragma once

#include "parameters.cuh"

// Exact; a NaN loses its payload.
__device__ __forceinline__ float half_to_float(u16 half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

// To nearest, ties to even; a NaN loses its payload.
__device__ __forceinline__ u16 float_to_half(float x) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

// float_to_half of both, the first in the low half of the word.
__device__ __forceinline__ u32 floats_to_halves(float low, float high) {
    u32 halves;
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "cvt.rn.f16.f32 low, %1;\n\t"
        "cvt.rn.f16.f32 high, %2;\n\t"
        "mov.b32 %0, {low, high};\n\t"
        "}"
        : "=r"(halves)
        : "f"(low), "f"(high));
    return halves;
}

// The sums of the low and of the high halves, to nearest, ties to even.
__device__ __forceinline__ u32 add_halves(u32 a, u32 b) {
    u32 sums;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
}

// 1 / x for a normal x, within one unit in the last place; 0 for infinity.
__device__ __forceinline__ float approximate_reciprocal(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

// A load of memory that the launch writes, too: not through the read-only cache.
template <class T>
__device__ __forceinline__ T read_global(const T* at) {
    return *at;
}

// A plain store, for which __stwb would be the intrinsic, but that one is ordered with other threads' accesses.
template <class T>
__device__ __forceinline__ void write_global(T* at, T value) {
    *at = value;
}
