// The CUDA functions that the kernels use, for the CPU: each thread is a fiber, and blocks run one after the other.
//
// Every access to global memory is checked (inside an operand, aligned, of the kind that the launch declares, no byte
// written by two threads), every collective operation is checked (all lanes of the warp, or all threads of the block,
// at the same one), and arithmetic gives the NaNs that a GPU gives. The memory model is not emulated.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

// The interface for the launcher in Rust: shim.rs has the same.
extern "C" {

// Memory that a launch may use.
struct ShimOperand {
    const unsigned char* data;
    uint64_t len;
    // 0 to read, 1 to write, 2 for atomic operations.
    uint32_t access;
    uint32_t reserved;
    // For memory to write: the thread that has written each byte, counted from 1; zero before the launch.
    uint64_t* writers;
};

struct ShimLaunch {
    const void* parameters;
    const ShimOperand* operands;
    uint64_t operand_count;
    uint32_t grid;
    uint32_t block;
    // The order in which threads run between two collective operations: 0 forward, 1 backward, others random.
    uint64_t seed;
    // A block that has made so many collective operations is taken to hang.
    uint64_t max_collectives;
    // Receives the fault's message.
    char* message;
    uint64_t message_len;
};
}

namespace shim {

struct Index {
    unsigned x;
};

enum class Collective : unsigned { Shuffle, ShuffleUp, ShuffleXor, SyncWarp, SyncThreads };

Index thread_index();
Index block_index();
Index grid_size();

// Ends the launch with a fault. Does not return to the kernel.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Checks an access of this thread.
void access(const void* at, size_t len, unsigned kind);

// Waits for the other threads of the warp or of the block. The result of a shuffle is the value of the lane that
// `argument` selects; that of SyncThreads is whether any thread's value is not 0.
uint64_t together(Collective, unsigned mask, uint64_t value, unsigned argument, int line);

// A variable in shared memory.
struct Shared {
    void* data;
    size_t len;
};

// Runs a kernel: 0, or 1 after a fault.
int run(void (*kernel)(const void* parameters), std::initializer_list<Shared>, const ShimLaunch&);

// Calls a kernel with its parameters.
template <class P, void (*KERNEL)(P)>
void call(const void* parameters) {
    KERNEL(*static_cast<const P*>(parameters));
}

inline float of_gpu(float x) {
    if (std::isnan(x)) {
        const uint32_t bits = 0x7fffffff;
        std::memcpy(&x, &bits, sizeof x);
    }
    return x;
}

}  // namespace shim

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __shared__ static thread_local

#define threadIdx (shim::thread_index())
#define blockIdx (shim::block_index())
#define gridDim (shim::grid_size())

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}

template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

template <class T>
T __ldg(const T* at) {
    shim::access(at, sizeof(T), 0);
    return *at;
}

// Of memory that the launch may write.
template <class T>
T read_global(const T* at) {
    shim::access(at, sizeof(T), 3);
    return *at;
}

template <class T>
void write_global(T* at, T value) {
    shim::access(at, sizeof(T), 1);
    *at = value;
}

template <class T>
void __stcs(T* at, T value) {
    write_global(at, value);
}

inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long value) {
    shim::access(at, sizeof *at, 2);
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned lane, int line = __builtin_LINE()) {
    return static_cast<T>(shim::together(shim::Collective::Shuffle, mask, value, lane, line));
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int line = __builtin_LINE()) {
    return static_cast<T>(shim::together(shim::Collective::ShuffleUp, mask, value, distance, line));
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned distance, int line = __builtin_LINE()) {
    return static_cast<T>(shim::together(shim::Collective::ShuffleXor, mask, value, distance, line));
}

inline void __syncwarp(unsigned mask = 0xffffffff, int line = __builtin_LINE()) {
    shim::together(shim::Collective::SyncWarp, mask, 0, 0, line);
}

inline void __syncthreads(int line = __builtin_LINE()) {
    shim::together(shim::Collective::SyncThreads, 0xffffffff, 0, 0, line);
}

inline int __syncthreads_or(int value, int line = __builtin_LINE()) {
    return shim::together(shim::Collective::SyncThreads, 0xffffffff, value != 0, 0, line) != 0;
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float __fadd_rn(float a, float b) { return shim::of_gpu(a + b); }
inline float __fmul_rn(float a, float b) { return shim::of_gpu(a * b); }
inline float __fmaf_rn(float a, float b, float c) { return shim::of_gpu(std::fma(a, b, c)); }
inline float __fdiv_rn(float a, float b) { return shim::of_gpu(a / b); }
inline float __frcp_rn(float x) { return shim::of_gpu(1.0f / x); }

// One unit in the last place off, which is as much as a GPU may be.
inline float approximate_reciprocal(float x) {
    const float reciprocal = 1.0f / x;
    return shim::of_gpu(std::isfinite(x) ? std::nextafter(reciprocal, x < 1 ? 0.0f : 1e30f) : reciprocal);
}

inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned from = selector >> 4 * i & 7;
        result |= static_cast<unsigned>(bytes >> 8 * from & 0xff) << 8 * i;
    }
    return result;
}

inline float half_to_float(unsigned short half) {
    _Float16 x;
    std::memcpy(&x, &half, sizeof x);
    return shim::of_gpu(static_cast<float>(x));
}

inline unsigned short float_to_half(float x) {
    if (std::isnan(x)) {
        return 0x7fff;
    }
    const _Float16 rounded = static_cast<_Float16>(x);
    unsigned short half;
    std::memcpy(&half, &rounded, sizeof half);
    return half;
}

inline unsigned floats_to_halves(float low, float high) {
    return static_cast<unsigned>(float_to_half(high)) << 16 | float_to_half(low);
}

// The sum of two float16 is exact in float64.
inline unsigned add_halves(unsigned a, unsigned b) {
    unsigned sums = 0;
    for (unsigned shift = 0; shift < 32; shift += 16) {
        const double x = half_to_float(static_cast<unsigned short>(a >> shift));
        const double y = half_to_float(static_cast<unsigned short>(b >> shift));
        const _Float16 sum = static_cast<_Float16>(x + y);
        unsigned short half = 0x7fff;
        if (sum == sum) {
            std::memcpy(&half, &sum, sizeof half);
        }
        sums |= static_cast<unsigned>(half) << shift;
    }
    return sums;
}
