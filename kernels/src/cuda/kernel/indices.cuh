// Makes the index inputs of sequences that are alike, as static batching has them.
#pragma once

#include "access.cuh"
#include "call.cuh"

__device__ __forceinline__ void make_indices(const IndexParameters& p) {
    const u64 step = static_cast<u64>(gridDim.x) * BLOCK;
#pragma unroll 1
    for (u64 b = static_cast<u64>(blockIdx.x) * BLOCK + threadIdx.x; b <= p.batch; b += step) {
        write(p.seqstarts + 8 * b, static_cast<i64>(b) * p.seqlen);
        if (b < p.batch) {
            write(p.start_pos + 8 * b, p.past);
            write(p.cachestarts + 8 * b, static_cast<i64>(b) * p.stride);
        }
    }
}
