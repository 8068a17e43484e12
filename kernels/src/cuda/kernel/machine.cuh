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

// half_to_float of both halves of a word.
__device__ __forceinline__ void halves_to_floats(u32 halves, float& low, float& high) {
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "cvt.f32.f16 %1, high;\n\t"
        "}"
        : "=f"(low), "=f"(high)
        : "r"(halves));
}

// The products of the low and of the high halves, to nearest, ties to even.
__device__ __forceinline__ u32 multiply_halves(u32 a, u32 b) {
    u32 products;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
    return products;
}

// The sums of the low and of the high halves, to nearest, ties to even.
__device__ __forceinline__ u32 add_halves(u32 a, u32 b) {
    u32 sums;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
    return sums;
}

// Reads through the read-only cache into a whole register.
__device__ __forceinline__ u32 read_two_bytes(const u8* at) {
    u32 bytes;
    asm("ld.global.nc.u16 %0, [%1];" : "=r"(bytes) : "l"(at));
    return bytes;
}

__device__ __forceinline__ u32 read_byte(const u8* at) {
    u32 byte;
    asm("ld.global.nc.u8 %0, [%1];" : "=r"(byte) : "l"(at));
    return byte;
}

// The float of the lane whose number differs in these bits. All lanes of the warp call it together.
template <u32 DISTANCE>
__device__ __forceinline__ float shuffle_xor(float x) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(other) : "f"(x), "n"(DISTANCE));
    return other;
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
