// Blocks of numbers times the normalized Hadamard matrix, bit for bit as simd/src/hadamard.rs multiplies them.
#pragma once

#include "call.cuh"

// Multiplies the whole blocks of `len` numbers, which `at` gives in memory that the lanes of a warp share. All lanes
// call it together.
template <class At>
__device__ __forceinline__ void hadamard(u32 len, u32 order, At at) {
    const u32 lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll 1
    for (u32 distance = 1; distance < order; distance *= 2) {
#pragma unroll 1
        for (u32 i = lane; i < len / 2; i += WARP) {
            const u32 first = i + (i & ~(distance - 1));
            const float a = at(first);
            const float b = at(first + distance);
            at(first) = __fadd_rn(a, b);
            at(first + distance) = __fadd_rn(a, -b);
        }
        __syncwarp();
    }
    // The float32 nearest order^-1/2.
    float factor = 1.0f;
#pragma unroll 1
    for (u32 n = order; n > 1; n /= 4) {
        factor = __fmul_rn(factor, n == 2 ? 0.70710678f : 0.5f);
    }
    for (u32 i = lane; i < len && order > 1; i += WARP) {
        at(i) = __fmul_rn(at(i), factor);
    }
    __syncwarp();
}
