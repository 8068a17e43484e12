// Functions of the kernels' sources by themselves, for a test of their accuracy: each of `count` numbers is replaced by
// the function of it.

#include "exponential.cuh"

#define KERNEL(name, function)                                                                         \
    extern "C" __global__ void kvcache_##name##_arithmetic(float* numbers, u32 count, u32 argument) { \
        const u32 i = blockIdx.x * 256 + threadIdx.x;                                                  \
        if (i < count) {                                                                               \
            numbers[i] = function;                                                                     \
        }                                                                                              \
    }

KERNEL(exponential, exponential(numbers[i]))
KERNEL(alibi_slope, alibi_slope(i, argument))
