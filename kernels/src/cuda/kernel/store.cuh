// Stores the current tokens into the cache.
#pragma once

#include "access.cuh"
#include "call.cuh"
#include "quantize.cuh"

// The rank of the largest value of a pack; for int4 of these and of -0.
template <class T1, class Codes>
__device__ __forceinline__ u32 largest(const Words<16>& values) {
    u32 amax = SAME<Codes, I4> ? 1 : 0;
    if constexpr (SAME<T1, F32>) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            amax = max(amax, rank<F32, Codes>(values.word[i]));
        }
    } else if constexpr (SAME<Codes, I4>) {
        // It is the largest as an integer with a sign or without. Words order by their high halves first.
        i32 highest = 0;
        u32 lowest = 0x80000000;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 low = values.word[i] << 16;
            highest = max(max(highest, static_cast<i32>(low)), static_cast<i32>(values.word[i]));
            lowest = max(max(lowest, low), values.word[i]);
        }
        amax = max(with_sign_last(highest & 0xffff0000), with_sign_last(lowest & 0xffff0000));
    } else {
        // Words order by their high halves first, so their low halves need no mask.
        u32 high = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            amax = max(amax, values.word[i] & 0x7fff);
            high = max(high, values.word[i] & 0x7fffffff);
        }
        amax = max(amax, high >> 16);
        if (SAME<T1, F16> && amax > F16::INF) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                amax = max(amax, rank<T1, Codes>(element<T1>(values, i)));
            }
        }
    }
    return amax;
}

// The codes of a pack of values.
template <class T1, class T2, u32 BYTES>
__device__ __forceinline__ Words<BYTES> codes_of(const Words<16>& values, const Scale<T1>& scale) {
    Words<BYTES> codes = {};
    if constexpr (T2::BITS == 8) {
#pragma unroll
        for (u32 i = 0; i < 32 / T1::BITS; ++i) {
            u32 pairs[2];
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                const u32 at = 4 * i + 2 * j;
                pairs[j] = pair_of_codes<T1, T2>(element<T1>(values, at), element<T1>(values, at + 1), scale);
            }
            codes.word[i] = bytes_of(pairs[0], pairs[1]);
        }
    } else {
        codes.word[0] = nibbles_of<T1, 128 / T1::BITS>([&](u32 i) { return element<T1>(values, i); }, scale);
    }
#pragma unroll
    for (u32& word : codes.word) {
        word = scale.non_finite ? 0 : word;
    }
    return codes;
}

// Whether scales are static: no slot has its own, and they are only read. Only float8 has them.
template <class T2>
__device__ __forceinline__ bool has_static_scales(const Parameters& p) {
    return SAME<T2, F8> && p.scale_strides.token == 0;
}

// The static scale of a place's head, of keys (0) or values (1).
template <class T3>
__device__ __forceinline__ float static_scale(const Parameters& p, const Place& place, u32 kv) {
    const i64 at = head_at(p.scale_strides, place) + kv * p.scale_strides.kv;
    return value_of<T3>(read<typename T3::Bits>(p.scale + bytes_of_elements<T3>(at)));
}

// The float8 of a pack of values with a static scale.
template <class T1, u32 BYTES>
__device__ __forceinline__ Words<BYTES> static_codes_of(const Words<16>& values, float scale) {
    Words<BYTES> codes = {};
#pragma unroll
    for (u32 i = 0; i < BYTES; ++i) {
        codes.word[i / 4] |= static_code_of<T1>(element<T1>(values, i), scale) << i % 4 * 8;
    }
    return codes;
}

// A lane's unit is a pack: 16 bytes of values. With static scales a lane needs no other. Else a group is
// `units_per_group` packs, a power of two up to 32, in neighboring lanes of one warp, since a round starts at a multiple
// of 32 units and a head has whole groups.
template <class T1, class T2, class T3>
__device__ __forceinline__ void store_wide(const Parameters& p) {
    constexpr u32 PACK = 128 / T1::BITS;
    constexpr u32 BYTES = PACK * T2::BITS / 8;
    // Units in flight per lane.
    constexpr u32 N = 2;
    for_each_place<STORE, N>(p, [&](const Place (&places)[N]) {
        Words<16> values[N][2];
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
#pragma unroll
            for (u32 kv = 0; kv < 2; ++kv) {
                values[i][kv] = {};
                if (places[i].active) {
                    values[i][kv] = read_words<16>(p.current[kv] + places[i].unit * 16);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const Place& place = places[i];
#pragma unroll
            for (u32 kv = 0; kv < 2; ++kv) {
                const i64 head = head_at(p.cache_strides, place) + kv * p.cache_strides.kv;
                u8* cache = p.cache + bytes_of_elements<T2>(head + static_cast<i64>(place.d) * PACK);
                if constexpr (SAME<T3, None>) {
                    Words<BYTES> cells = {};
#pragma unroll
                    for (u32 j = 0; j < PACK; ++j) {
                        set_element<T2>(cells, j, convert<T2, T1>(element<T1>(values[i][kv], j)));
                    }
                    if (place.active) {
                        write_words<BYTES>(cache, cells);
                    }
                } else {
                    if constexpr (SAME<T2, F8>) {
                        if (has_static_scales<T2>(p)) {
                            if (place.active) {
                                const float scale = static_scale<T3>(p, place, kv);
                                write_words<BYTES>(cache, static_codes_of<T1, BYTES>(values[i][kv], scale));
                            }
                            continue;
                        }
                    }
                    u32 amax = largest<T1, T2>(values[i][kv]);
#pragma unroll 1
                    for (u32 distance = p.units_per_group.value / 2; distance > 0; distance /= 2) {
                        amax = max(amax, __shfl_xor_sync(ALL_LANES, amax, distance));
                    }
                    const Scale<T1> scale = scale_of<T1, T2>(amax);
                    const Words<BYTES> codes = codes_of<T1, T2, BYTES>(values[i][kv], scale);
                    const u32 group = divide(place.d, p.units_per_group);
                    if (place.active) {
                        write_words<BYTES>(cache, codes);
                    }
                    if (place.active && place.d == group * p.units_per_group.value) {
                        const i64 at = head_at(p.scale_strides, place) + kv * p.scale_strides.kv + group;
                        write(p.scale + bytes_of_elements<T3>(at), convert<T3, T1>(scale.bits));
                    }
                }
            }
        }
    });
}

// Stores byte `i` of the codes of values, which `value` gives by their numbers.
template <class T1, class T2, class Value>
__device__ __forceinline__ void store_byte(u32 i, Value value, const Scale<T1>& scale, u8* cache) {
    u32 byte;
    if constexpr (T2::BITS == 8) {
        byte = code_of<T1, T2>(value(i), scale);
    } else {
        byte = nibbles_of<T1, 2>([&](u32 j) { return value(2 * i + j); }, scale);
    }
    write(cache + i, static_cast<u8>(scale.non_finite ? 0 : byte));
}

// Stores a group of values, which `value` gives by their numbers, as codes and a scale.
template <class T1, class T2, class T3, class Value>
__device__ __forceinline__ void store_group(u32 group, Value value, u8* cache, u8* scale) {
    u32 amax = SAME<T2, I4> ? 1 : 0;
#pragma unroll 1
    for (u32 i = 0; i < group; ++i) {
        amax = max(amax, rank<T1, T2>(value(i)));
    }
    const Scale<T1> of_group = scale_of<T1, T2>(amax);
#pragma unroll 1
    for (u32 i = 0; i < group * T2::BITS / 8; ++i) {
        store_byte<T1, T2>(i, value, of_group, cache);
    }
    write(scale, convert<T3, T1>(of_group.bits));
}

// A lane's unit is an element or, with scales of groups, a group of any length: no two lanes write one byte.
template <class T1, class T2, class T3>
__device__ __forceinline__ void store_narrow(const Parameters& p) {
    using Bits = typename T1::Bits;
    for_each_place<STORE, 1>(p, [&](const Place (&places)[1]) {
        const Place& place = places[0];
        if (!place.active) {
            return;
        }
#pragma unroll
        for (u32 kv = 0; kv < 2; ++kv) {
            const i64 head = head_at(p.cache_strides, place) + kv * p.cache_strides.kv;
            if constexpr (SAME<T3, None>) {
                const Bits x = read<Bits>(p.current[kv] + bytes_of_elements<T1>(place.unit));
                write(p.cache + bytes_of_elements<T2>(head + place.d), convert<T2, T1>(x));
            } else {
                if constexpr (SAME<T2, F8>) {
                    if (has_static_scales<T2>(p)) {
                        const Bits x = read<Bits>(p.current[kv] + bytes_of_elements<T1>(place.unit));
                        const u32 code = static_code_of<T1>(x, static_scale<T3>(p, place, kv));
                        write(p.cache + head + place.d, static_cast<u8>(code));
                        continue;
                    }
                }
                const u8* values = p.current[kv] + bytes_of_elements<T1>(place.unit * p.group);
                u8* cache = p.cache + bytes_of_elements<T2>(head + static_cast<i64>(place.d) * p.group);
                const auto value = [&](u32 i) { return read<Bits>(values + bytes_of_elements<T1>(i)); };
                const i64 at = head_at(p.scale_strides, place) + kv * p.scale_strides.kv + place.d;
                store_group<T1, T2, T3>(p.group, value, cache, p.scale + bytes_of_elements<T3>(at));
            }
        }
    });
}
