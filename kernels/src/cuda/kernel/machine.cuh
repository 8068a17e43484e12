// Instructions that neither the language nor NVRTC's headers have a name for. On the CPU the shim has these functions.
#pragma once

#include "parameters.cuh"

#ifdef __CUDACC_RTC__

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

// 1 / x for a normal x, off by one unit in the last place at most; 0 for infinity.
__device__ __forceinline__ float approximate_reciprocal(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

// __stwb would be this, but ordered against other threads' accesses.
template <class T>
__device__ __forceinline__ void write_global(T* at, T value) {
    *at = value;
}

#endif
