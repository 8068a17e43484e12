// Loads all tokens of all sequences from the cache.
#pragma once

#include "access.cuh"
#include "call.cuh"
#include "quantize.cuh"

// A pack of values from its cache elements; `scale` is ignored without quantization.
template <class T1, class T2, class T3, u32 BYTES>
__device__ __forceinline__ Words<16> values_of(const Words<BYTES>& cells, typename T3::Bits scale) {
    constexpr u32 PACK = 128 / T1::BITS;
    constexpr u32 PER_WORD = 32 / T2::BITS;
    Words<16> values = {};
    if constexpr (SAME<T3, None>) {
#pragma unroll
        for (u32 i = 0; i < PACK; ++i) {
            set_element<T1>(values, i, convert<T1, T2>(element<T2>(cells, i)));
        }
    } else if (is_non_finite<T3>(scale)) {
        const typename T1::Bits nan = nan_of<T1, T3>(scale);
#pragma unroll
        for (u32 i = 0; i < PACK; ++i) {
            const float code = code_in<T2>(cells.word[i / PER_WORD], i % PER_WORD);
            set_element<T1>(values, i, value_at_non_finite_scale<T1, T3>(code, scale, nan));
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < PACK; ++i) {
            const float code = code_in<T2>(cells.word[i / PER_WORD], i % PER_WORD);
            set_element<T1>(values, i, value_of_code<T1, T3>(code, scale));
        }
    }
    return values;
}

// A lane's unit is a pack: 16 bytes of values of one group.
template <class T1, class T2, class T3>
__device__ __forceinline__ void load_wide(const Parameters& p) {
    using Factor = typename T3::Bits;
    constexpr u32 PACK = 128 / T1::BITS;
    constexpr u32 BYTES = PACK * T2::BITS / 8;
    // Packs in flight: the more, the smaller they are; no more than fit in registers on every architecture.
    constexpr u32 N = BYTES <= 4 ? 4 : BYTES <= 16 ? 2 : 1;
    for_each_place<LOAD, N>(p, [&](const Place (&places)[N]) {
        Words<BYTES> cells[N][2];
        Factor scales[N][2];
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const Place& place = places[i];
            if (!place.active) {
                continue;
            }
#pragma unroll
            for (u32 kv = 0; kv < 2; ++kv) {
                const i64 head = head_at(p.cache_strides, place) + kv * p.cache_strides.kv;
                const i64 at = head + static_cast<i64>(place.d) * PACK;
                cells[i][kv] = read_words<BYTES>(p.cache + bytes_of_elements<T2>(at));
                if constexpr (!SAME<T3, None>) {
                    const i64 group = divide(place.d, p.units_per_group);
                    const i64 at = head_at(p.scale_strides, place) + kv * p.scale_strides.kv + group;
                    scales[i][kv] = read<Factor>(p.scale + bytes_of_elements<T3>(at));
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const Place& place = places[i];
            if (!place.active) {
                continue;
            }
            // The pack's number in the output, in the first of the head's repeats.
            const u64 at = (place.unit - place.d) * p.num_repeat + place.d;
#pragma unroll
            for (u32 kv = 0; kv < 2; ++kv) {
                const Words<16> values = values_of<T1, T2, T3, BYTES>(cells[i][kv], scales[i][kv]);
                u8* output = p.outputs[kv] + at * 16;
#pragma unroll 1
                for (u32 r = 0; r < p.num_repeat; ++r) {
                    stream_words(output, values);
                    output += bytes_of_elements<T1>(p.head_dim);
                }
            }
        }
    });
}

// A lane's unit is an element or, for int4, a byte.
template <class T1, class T2, class T3>
__device__ __forceinline__ void load_narrow(const Parameters& p) {
    using Factor = typename T3::Bits;
    constexpr u32 UNIT = SAME<T2, I4> ? 2 : 1;
    for_each_place<LOAD, 1>(p, [&](const Place (&places)[1]) {
        const Place& place = places[0];
        if (!place.active) {
            return;
        }
        const u64 output_at = ((place.unit - place.d) * p.num_repeat + place.d) * UNIT;
#pragma unroll
        for (u32 kv = 0; kv < 2; ++kv) {
            const i64 head = head_at(p.cache_strides, place) + kv * p.cache_strides.kv;
            const u8* cache = p.cache + bytes_of_elements<T2>(head + static_cast<i64>(place.d) * UNIT);
            const auto cell = read<typename T2::Bits>(cache);
            Factor scale = 0;
            if constexpr (!SAME<T3, None>) {
                const i64 group = divide(place.d, p.units_per_group);
                const i64 at = head_at(p.scale_strides, place) + kv * p.scale_strides.kv + group;
                scale = read<Factor>(p.scale + bytes_of_elements<T3>(at));
            }
#pragma unroll
            for (u32 i = 0; i < UNIT; ++i) {
                typename T1::Bits value;
                if constexpr (SAME<T3, None>) {
                    value = convert<T1, T2>(cell);
                } else {
                    const float code = code_in<T2>(cell, i);
                    value = is_non_finite<T3>(scale)
                                ? value_at_non_finite_scale<T1, T3>(code, scale, nan_of<T1, T3>(scale))
                                : value_of_code<T1, T3>(code, scale);
                }
                u8* output = p.outputs[kv] + bytes_of_elements<T1>(output_at + i);
#pragma unroll 1
                for (u32 r = 0; r < p.num_repeat; ++r) {
                    write(output, value);
                    output += bytes_of_elements<T1>(p.head_dim);
                }
            }
        }
    });
}
