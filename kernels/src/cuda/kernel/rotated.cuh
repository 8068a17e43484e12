// Stores and loads where keys are multiplied by a Hadamard matrix before they are quantized. A unit is a head, and a warp
// takes one after the other, through memory that its lanes share.
#pragma once

#include "hadamard.cuh"
#include "load.cuh"
#include "store.cuh"

// Elements of a head that a warp has at once: whole blocks, two of the largest.
constexpr u32 WINDOW = 512;

// A warp's window.
__shared__ float rotated[BLOCK / WARP][WINDOW];

// Calls `move` with each head of this warp, in keys (0) and values (1), and the warp's memory: for all its lanes.
template <Phase PHASE, class Move>
__device__ __forceinline__ void for_each_head(const Parameters& p, Move move) {
    for_each_place<PHASE, 1>(p, [&](const Place (&places)[1]) {
#pragma unroll 1
        for (u32 lane = 0; lane < WARP; ++lane) {
            Place place = places[0];
            place.slot = __shfl_sync(ALL_LANES, place.active ? place.slot : -1, lane);
            place.unit = __shfl_sync(ALL_LANES, place.unit, lane);
            place.h = __shfl_sync(ALL_LANES, place.h, lane);
#pragma unroll 1
            for (u32 kv = 0; kv < 2 && place.slot >= 0; ++kv) {
                move(place, kv, rotated[threadIdx.x / WARP]);
                // The next head comes into the same memory.
                __syncwarp();
            }
        }
    });
}

// The bytes of a head, in cache or in scale.
template <class T>
__device__ __forceinline__ u8* head_in(u8* data, const Strides& strides, const Place& place, u32 kv) {
    return data + bytes_of_elements<T>(head_at(strides, place) + kv * strides.kv);
}

// Groups that end in a window are stored by a lane each. A group that is longer than a window, or begins too late in
// one, is gone over twice, a window at a time: for its scale, and for its codes.
template <class T1, class T2, class T3>
__device__ __forceinline__ void store_rotated(const Parameters& p) {
    if constexpr (!SAME<T3, None>) {
        const u32 lane = threadIdx.x % WARP;
        constexpr u32 PER_BYTE = 8 / T2::BITS;
        constexpr u32 LEAST = SAME<T2, I4> ? 1 : 0;
        for_each_head<STORE>(p, [&](const Place& place, u32 kv, float* head) {
            const u8* values = p.current[kv] + bytes_of_elements<T1>(place.unit * p.head_dim);
            u8* cache = head_in<T2>(p.cache, p.cache_strides, place, kv);
            u8* scales = head_in<T3>(p.scale, p.scale_strides, place, kv);
            const u32 order = kv == 0 ? p.rotation_order : 1;
            // The first elements of the next group and of the window, a block's first; the rank of a long group.
            u32 at = 0, from = 0, amax = LEAST;
            bool is_measured = false;
#pragma unroll 1
            while (at < p.head_dim) {
                const u32 len = min(WINDOW, p.head_dim - from);
#pragma unroll 1
                for (u32 d = lane; d < len; d += WARP) {
                    head[d] = value_of<T1>(read<typename T1::Bits>(values + bytes_of_elements<T1>(from + d)));
                }
                hadamard(len, order, [&](u32 d) -> float& { return head[d]; });
                const auto value = [&](u32 d) { return bits_of<T1>(head[d]); };
                if (has_static_scales<T2>(p)) {
                    const float scale = static_scale<T3>(p, place, kv);
#pragma unroll 1
                    for (u32 d = lane; d < len; d += WARP) {
                        write(cache + from + d, static_cast<u8>(static_code_of<T1>(value(d), scale)));
                    }
                    at = from += len;
                    __syncwarp();
                    continue;
                }
                const u32 whole = from <= at && !is_measured ? (from + len - at) / p.group : 0;
                if (whole > 0) {
#pragma unroll 1
                    for (u32 group = lane; group < whole; group += WARP) {
                        const u32 d = at + group * p.group;
                        u8* scale = scales + bytes_of_elements<T3>(d / p.group);
                        store_group<T1, T2, T3>(
                            p.group, [&](u32 i) { return value(d - from + i); }, cache + bytes_of_elements<T2>(d), scale);
                    }
                    at += whole * p.group;
                    from = at & ~(order - 1);
                    __syncwarp();
                    continue;
                }
                const Scale<T1> scale = scale_of<T1, T2>(amax);
#pragma unroll 1
                for (u32 d = lane * PER_BYTE; d < len; d += WARP * PER_BYTE) {
                    // Elements before the group are beyond its end, without a sign.
                    if (from + d - at >= p.group) {
                        continue;
                    }
                    if (is_measured) {
                        u8* codes = cache + (from + d) / PER_BYTE;
                        store_byte<T1, T2>(0, [&](u32 i) { return value(d + i); }, scale, codes);
                    } else {
                        amax = max(amax, max(rank<T1, T2>(value(d)), rank<T1, T2>(value(d + PER_BYTE - 1))));
                    }
                }
                __syncwarp();
                from += WINDOW;
                if (from < at + p.group) {
                    continue;
                }
                if (is_measured) {
                    if (lane == 0) {
                        write(scales + bytes_of_elements<T3>(at / p.group), convert<T3, T1>(scale.bits));
                    }
                    at += p.group;
                    amax = LEAST;
                } else {
#pragma unroll 1
                    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
                        amax = max(amax, __shfl_xor_sync(ALL_LANES, amax, distance));
                    }
                }
                is_measured = !is_measured;
                from = at & ~(order - 1);
            }
        });
    }
}

template <class T1, class T2, class T3>
__device__ __forceinline__ void load_rotated(const Parameters& p) {
    if constexpr (!SAME<T3, None>) {
        const u32 lane = threadIdx.x % WARP;
        constexpr u32 PER_BYTE = 8 / T2::BITS;
        for_each_head<LOAD>(p, [&](const Place& place, u32 kv, float* head) {
            const u8* cache = head_in<T2>(p.cache, p.cache_strides, place, kv);
            const u8* scales = head_in<T3>(p.scale, p.scale_strides, place, kv);
            const u64 output_at = place.unit * p.num_repeat * p.head_dim;
#pragma unroll 1
            for (u32 first = 0; first < p.head_dim; first += WINDOW) {
                const u32 len = min(WINDOW, p.head_dim - first);
#pragma unroll 1
                for (u32 i = lane; i < len; i += WARP) {
                    const u32 d = first + i;
                    const auto scale = read<typename T3::Bits>(scales + bytes_of_elements<T3>(d / p.group));
                    const float code = code_in<T2>(read<u8>(cache + d / PER_BYTE), d % PER_BYTE);
                    head[i] = value_of<T1>(is_non_finite<T3>(scale)
                                               ? value_at_non_finite_scale<T1, T3>(code, scale, nan_of<T1, T3>(scale))
                                               : value_of_code<T1, T3>(code, scale));
                }
                hadamard(len, kv == 0 ? p.rotation_order : 1, [&](u32 i) -> float& { return head[i]; });
                u8* output = p.outputs[kv] + bytes_of_elements<T1>(output_at + first);
#pragma unroll 1
                for (u32 r = 0; r < p.num_repeat; ++r) {
#pragma unroll 1
                    for (u32 i = lane; i < len; i += WARP) {
                        write(output + bytes_of_elements<T1>(i), bits_of<T1>(head[i]));
                    }
                    output += bytes_of_elements<T1>(p.head_dim);
                }
                // The next window comes into the same memory.
                __syncwarp();
            }
        });
    }
}
