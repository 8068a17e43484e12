// The kernels for one combination of types: VALUES (T1), CELLS (T2) and SCALES (T3; None without quantization), whose
// names end in TYPES.
//
// All four names, and the types as the compiler is given them, are in ptx.rs and generate.py.

#include "load.cuh"
#include "store.cuh"

#define NAME_(kernel, types) kvcache_##kernel##_##types
#define NAME(kernel, types) NAME_(kernel, types)

// Four blocks on a multiprocessor, as launch.rs has it: 64 registers a thread, for the units in flight.
#define KERNEL(kernel)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) NAME(kernel, TYPES)(                 \
        const __grid_constant__ Parameters p) {                                                 \
        kernel<VALUES, CELLS, SCALES>(p);                                                                  \
    }

KERNEL(store_wide)
KERNEL(store_narrow)
KERNEL(load_wide)
KERNEL(load_narrow)
