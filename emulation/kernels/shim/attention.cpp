// The attention kernels for one combination of types, compiled for the CPU. NAMESPACE and TYPES are unique to each
// build.

#include "shim.hpp"

namespace NAMESPACE {

#include "attention.cu"

namespace {

template <void (*ENTRY)(const AttentionParameters)>
void call(const void* parameters) {
    ENTRY(*static_cast<const AttentionParameters*>(parameters));
}

}  // namespace

// In the order of `Module::kernels`.
extern "C" int NAME(launch_attention, TYPES)(uint32_t kernel, const ShimLaunch* launch) {
    static constexpr void (*ENTRIES[])(const void*) = {
        call<NAME(attend_wide, TYPES)>,
        call<NAME(attend_narrow, TYPES)>,
        call<NAME(combine, TYPES)>,
    };
    return shim::run(ENTRIES[kernel], {{&batch, sizeof batch}, {&tile, sizeof tile}}, *launch);
}

}  // namespace NAMESPACE
