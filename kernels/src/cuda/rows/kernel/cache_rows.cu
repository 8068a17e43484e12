// The kernels that move rows of any types, and those that rotate keys, for each type of the cache and its scales. The
// names are also in rows/ptx.rs and modules.yaml. TYPES ends them, as it does all kernels' names.

#include "cache_rows.cuh"

#define NAME_(kernel, types) kvcache_##kernel##_##types
#define NAME(kernel, types) NAME_(kernel, types)
#define KERNEL(kernel, parameters, call)                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) NAME(kernel, TYPES)(                 \
        const __grid_constant__ parameters p) {                                                 \
        call(p);                                                                                \
    }
#define COMMA ,

KERNEL(move_wide, MoveParameters, move<uint4>)
KERNEL(move_narrow, MoveParameters, move<u8>)
KERNEL(rotate_f32, RotateParameters, rotate<F32 COMMA None>)
KERNEL(rotate_f16, RotateParameters, rotate<F16 COMMA None>)
KERNEL(rotate_bf16, RotateParameters, rotate<BF16 COMMA None>)
KERNEL(rotate_i8_f32, RotateParameters, rotate<I8 COMMA F32>)
KERNEL(rotate_i8_f16, RotateParameters, rotate<I8 COMMA F16>)
KERNEL(rotate_i4_f32, RotateParameters, rotate<I4 COMMA F32>)
KERNEL(rotate_i4_f16, RotateParameters, rotate<I4 COMMA F16>)
KERNEL(rotate_f8_f32, RotateParameters, rotate<F8 COMMA F32>)
KERNEL(rotate_f8_f16, RotateParameters, rotate<F8 COMMA F16>)
