// Stores and loads where keys are multiplied by a Hadamard matrix before they are quantized. A unit is a head, and a warp
// takes one after the other, through memory that its lanes share.
#pragma once

#include "hadamard.cuh"
#include "load.cuh"
#include "store.cuh"

// As in launch.rs.
constexpr u32 MOST_ROTATED = 512;

// A warp's head.
__shared__ float rotated[BLOCK / WARP][MOST_ROTATED];

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

template <class T1, class T2, class T3>
__device__ __forceinline__ void store_rotated(const Parameters& p) {
    if constexpr (!SAME<T3, None>) {
        const u32 lane = threadIdx.x % WARP;
        for_each_head<STORE>(p, [&](const Place& place, u32 kv, float* head) {
            const u8* values = p.current[kv] + bytes_of_elements<T1>(place.unit * p.head_dim);
            for (u32 d = lane; d < p.head_dim; d += WARP) {
                head[d] = value_of<T1>(read<typename T1::Bits>(values + bytes_of_elements<T1>(d)));
            }
            hadamard(p.head_dim, kv == 0 ? p.rotation_order : 1, [&](u32 d) -> float& { return head[d]; });
            u8* cache = head_in<T2>(p.cache, p.cache_strides, place, kv);
            if (has_static_scales<T2>(p)) {
                const float scale = static_scale<T3>(p, place, kv);
                for (u32 d = lane; d < p.head_dim; d += WARP) {
                    write(cache + d, static_cast<u8>(static_code_of<T1>(bits_of<T1>(head[d]), scale)));
                }
                return;
            }
            u8* scale = head_in<T3>(p.scale, p.scale_strides, place, kv);
            for (u32 group = lane; group < p.head_dim / p.group; group += WARP) {
                const float* first = head + group * p.group;
                const auto value = [&](u32 i) { return bits_of<T1>(first[i]); };
                u8* codes = cache + bytes_of_elements<T2>(group * p.group);
                store_group<T1, T2, T3>(p.group, value, codes, scale + bytes_of_elements<T3>(group));
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
            for (u32 d = lane; d < p.head_dim; d += WARP) {
                const auto scale = read<typename T3::Bits>(scales + bytes_of_elements<T3>(d / p.group));
                const float code = code_in<T2>(read<u8>(cache + d / PER_BYTE), d % PER_BYTE);
                head[d] = value_of<T1>(is_non_finite<T3>(scale)
                                           ? value_at_non_finite_scale<T1, T3>(code, scale, nan_of<T1, T3>(scale))
                                           : value_of_code<T1, T3>(code, scale));
            }
            hadamard(p.head_dim, kv == 0 ? p.rotation_order : 1, [&](u32 d) -> float& { return head[d]; });
            u8* output = p.outputs[kv] + bytes_of_elements<T1>(place.unit * p.num_repeat * p.head_dim);
#pragma unroll 1
            for (u32 r = 0; r < p.num_repeat; ++r) {
                for (u32 d = lane; d < p.head_dim; d += WARP) {
                    write(output + bytes_of_elements<T1>(d), bits_of<T1>(head[d]));
                }
                output += bytes_of_elements<T1>(p.head_dim);
            }
        });
    }
}
