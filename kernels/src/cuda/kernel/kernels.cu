// The kernels for one combination of types. Macros: VALUES is T1, CELLS is T2, SCALES is T3 (None without
// quantization), and TYPES is the suffix of the kernels' names.
//
// The names are also in ptx.rs and generate.py.

#include "indices.cuh"
#include "rotated.cuh"

#define NAME_(kernel, types) kvcache_##kernel##_##types
#define NAME(kernel, types) NAME_(kernel, types)

// Four resident blocks per multiprocessor, as launch.rs assumes: 64 registers a thread, for the units in flight.
#define KERNEL(kernel)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) NAME(kernel, TYPES)(                 \
        const __grid_constant__ Parameters p) {                                                 \
        kernel<VALUES, CELLS, SCALES>(p);                                                                  \
    }

KERNEL(store_wide)
KERNEL(store_narrow)
KERNEL(load_wide)
KERNEL(load_narrow)

extern "C" __global__ void __launch_bounds__(BLOCK, 4) NAME(make_indices, TYPES)(
    const __grid_constant__ IndexParameters p) {
    make_indices(p);
}

KERNEL(store_rotated)
KERNEL(load_rotated)
