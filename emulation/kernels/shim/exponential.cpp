// The attention kernels' exponential, for a test of its accuracy.

#include "shim.hpp"

namespace NAMESPACE {

#include "exponential.cuh"

}  // namespace NAMESPACE

extern "C" float kvcache_exponential(float x) { return NAMESPACE::exponential(x); }

extern "C" float kvcache_alibi_slope(uint32_t h, uint32_t c) { return NAMESPACE::alibi_slope(h, c); }
