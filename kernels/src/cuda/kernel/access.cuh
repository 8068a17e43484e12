// Vector accesses of a lane: 1, 2, 4, 8, 16 or 32 bytes, aligned to their size (32 bytes to 16).
#pragma once

#include "machine.cuh"

template <u32 BYTES>
struct Words {
    u32 word[(BYTES + 3) / 4];
};

template <class T>
__device__ __forceinline__ T read(const u8* at) {
    return __ldg(reinterpret_cast<const T*>(at));
}

// Reads memory that the launch writes, too.
template <class T>
__device__ __forceinline__ T read_written(const u8* at) {
    return read_global(reinterpret_cast<const T*>(at));
}

template <class T>
__device__ __forceinline__ void write(u8* at, T value) {
    write_global(reinterpret_cast<T*>(at), value);
}

// Reads through the read-only cache: nothing may write these bytes while the launch runs.
template <u32 BYTES>
__device__ __forceinline__ Words<BYTES> read_words(const u8* at) {
    Words<BYTES> words;
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (u32 i = 0; i < BYTES / 16; ++i) {
            const uint4 four = read<uint4>(at + 16 * i);
            words.word[4 * i] = four.x;
            words.word[4 * i + 1] = four.y;
            words.word[4 * i + 2] = four.z;
            words.word[4 * i + 3] = four.w;
        }
    } else if constexpr (BYTES == 8) {
        const uint2 two = read<uint2>(at);
        words.word[0] = two.x;
        words.word[1] = two.y;
    } else if constexpr (BYTES == 4) {
        words.word[0] = read<u32>(at);
    } else if constexpr (BYTES == 2) {
        words.word[0] = read_two_bytes(at);
    } else {
        static_assert(BYTES == 1);
        words.word[0] = read_byte(at);
    }
    return words;
}

template <u32 BYTES>
__device__ __forceinline__ void write_words(u8* at, const Words<BYTES>& words) {
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (u32 i = 0; i < BYTES / 16; ++i) {
            const u32* word = words.word + 4 * i;
            write(at + 16 * i, make_uint4(word[0], word[1], word[2], word[3]));
        }
    } else if constexpr (BYTES == 8) {
        write(at, make_uint2(words.word[0], words.word[1]));
    } else if constexpr (BYTES == 4) {
        write(at, words.word[0]);
    } else {
        static_assert(BYTES == 2);
        write(at, static_cast<u16>(words.word[0]));
    }
}

// A streaming store: the launch does not read the bytes again, so they should be evicted from L2 first.
__device__ __forceinline__ void stream_words(u8* at, const Words<16>& words) {
    __stcs(reinterpret_cast<uint4*>(at), make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]));
}

// Element i of packed words.
template <class T, u32 BYTES>
__device__ __forceinline__ typename T::Bits element(const Words<BYTES>& words, u32 i) {
    constexpr u32 PER_WORD = 32 / T::BITS;
    return static_cast<typename T::Bits>(words.word[i / PER_WORD] >> i % PER_WORD * T::BITS);
}

// Sets element i of packed words, which is zero so far.
template <class T, u32 BYTES>
__device__ __forceinline__ void set_element(Words<BYTES>& words, u32 i, typename T::Bits bits) {
    constexpr u32 PER_WORD = 32 / T::BITS;
    words.word[i / PER_WORD] |= static_cast<u32>(bits) << i % PER_WORD * T::BITS;
}

// The bytes of `count` elements.
template <class T>
__device__ __forceinline__ i64 bytes_of_elements(i64 count) {
    return count * static_cast<i64>(T::BITS) / 8;
}
