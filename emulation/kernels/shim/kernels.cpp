// The kernels for one combination of types, compiled for the CPU. NAMESPACE and TYPES are unique to each build.

#include "shim.hpp"

namespace NAMESPACE {

#include "kernels.cu"

namespace {

template <void (*ENTRY)(const Parameters)>
void call(const void* parameters) {
    ENTRY(*static_cast<const Parameters*>(parameters));
}

}  // namespace

// In the order of `Module::kernels`.
extern "C" int NAME(launch, TYPES)(uint32_t kernel, const ShimLaunch* launch) {
    static constexpr void (*ENTRIES[])(const void*) = {
        call<NAME(store_wide, TYPES)>,
        call<NAME(store_narrow, TYPES)>,
        call<NAME(load_wide, TYPES)>,
        call<NAME(load_narrow, TYPES)>,
    };
    return shim::run(ENTRIES[kernel], {{&batch, sizeof batch}}, *launch);
}

}  // namespace NAMESPACE
