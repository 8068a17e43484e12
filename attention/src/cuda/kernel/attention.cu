// The attention kernels for one combination of types. Macros: VALUES is T1, CELLS is T2, SCALES is T3 (None without
// quantization), and TYPES is the suffix of the kernels' names.
//
// The names are also in modules.yaml.

#include "mass.cuh"

#define NAME_(kernel, types) kvcache_##kernel##_##types
#define NAME(kernel, types) NAME_(kernel, types)

#define KERNEL(kernel, blocks)                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK, blocks) NAME(kernel, TYPES)(            \
        const __grid_constant__ AttentionParameters p) {                                        \
        kernel<VALUES, CELLS, SCALES>(p);                                                       \
    }

// Two resident blocks per multiprocessor: 128 registers a thread, for a key and the sums of a tile. Where elements are
// read one by one, more addresses are at hand than fit beside them.
KERNEL(attend_wide, 2)
KERNEL(attend_narrow, 1)
KERNEL(combine, 2)
KERNEL(mass_wide, 2)
KERNEL(mass_narrow, 1)
