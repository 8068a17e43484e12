// The kernels that move rows of any types, and those that rotate keys, for each type of the cache and its scales. TYPES
// ends their names, as it does those of all kernels.

#include "cache_rows.cuh"

#define NAME_(kernel, types) kvcache_##kernel##_##types
#define NAME(kernel, types) NAME_(kernel, types)
#define KERNEL(kernel, parameters, call)                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) NAME(kernel, TYPES)(                 \
        const __grid_constant__ parameters p) {                                                 \
        call(p);                                                                                \
    }
#define COMMA ,

// For each kernel that rotates: its types in the name, T2 and T3.
#define ROTATIONS(OF)                                                    \
    OF(f32, F32, None) OF(f16, F16, None) OF(bf16, BF16, None)           \
    OF(i8_f32, I8, F32) OF(i8_f16, I8, F16) OF(i4_f32, I4, F32)          \
    OF(i4_f16, I4, F16) OF(f8_f32, F8, F32) OF(f8_f16, F8, F16)
#define ROTATION(types, T2, T3) KERNEL(rotate_##types, RotateParameters, rotate<T2 COMMA T3>)

KERNEL(move_wide, MoveParameters, move<uint4>)
KERNEL(move_narrow, MoveParameters, move<u8>)
ROTATIONS(ROTATION)
