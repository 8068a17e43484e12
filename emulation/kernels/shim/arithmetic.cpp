// The kernels' scales and codes against the specification's formulas: division, rounding and clamping; and the attention
// kernels' exponential, for a test of its accuracy.

#include "shim.hpp"

namespace arithmetic {

#include "exponential.cuh"
#include "quantize.cuh"

namespace {

// round_half_even(x), clamped.
template <class Codes>
int expected_code(float quotient) {
    return static_cast<int>(min(max(std::nearbyint(quotient), -Codes::QMAX), Codes::QMAX));
}

// The number of wrong codes and scales for groups whose largest magnitude has these bits, with reciprocals that are off
// by `units` in the last place.
template <class Codes>
uint64_t wrong_of_float16(u32 amax, int units) {
    Scale<F16> scale = scale_of<F16, Codes>(amax);
    scale.reciprocal = __uint_as_float(__float_as_uint(1.0f / scale.value) + units);
    const u32 quotient = float_to_half(half_to_float(amax) / Codes::QMAX);
    const u32 expected = max(quotient, F16::SCALE_FLOOR);
    uint64_t wrong = expected != scale.bits;
    for (u32 x = 0; x <= amax; ++x) {
        const float exact = half_to_float(float_to_half(half_to_float(x) / half_to_float(expected)));
        wrong += expected_code<Codes>(exact) != static_cast<i8>(code_of<F16, Codes>(x, scale));
        wrong += expected_code<Codes>(-exact) != static_cast<i8>(code_of<F16, Codes>(x | 0x8000, scale));
        const u32 pair = pair_of_codes<F16, Codes>(x, x | 0x8000, scale);
        wrong += expected_code<Codes>(exact) != static_cast<i8>(pair);
        wrong += expected_code<Codes>(-exact) != static_cast<i8>(pair >> 16);
    }
    return wrong;
}

// The same for float32, and for the given values only; those larger than the largest magnitude are skipped.
template <class Codes>
uint64_t wrong_of_float32(u32 amax, const u32* values, u32 count) {
    const Scale<F32> scale = scale_of<F32, Codes>(amax);
    const float quotient = __uint_as_float(amax) / Codes::QMAX;
    const float expected = max(quotient, 1e-5f);
    uint64_t wrong = __float_as_uint(expected) != scale.bits;
    for (u32 i = 0; i < count; ++i) {
        if (magnitude<F32>(values[i]) > amax) {
            continue;
        }
        const float x = __uint_as_float(values[i]);
        const float exact = x / expected;
        wrong += expected_code<Codes>(exact) != static_cast<i8>(code_of<F32, Codes>(values[i], scale));
        // The quotient itself, where its last bit can matter.
        wrong += std::fabs(exact) >= 0.25f && exact != divide<F32>(x, expected, scale.reciprocal);
    }
    return wrong;
}

}  // namespace

extern "C" uint64_t kvcache_wrong_of_float16(u32 amax) {
    uint64_t wrong = 0;
    for (int units = -1; units <= 1; ++units) {
        wrong += wrong_of_float16<I8>(amax, units) + wrong_of_float16<I4>(amax, units);
    }
    return wrong;
}

extern "C" uint64_t kvcache_wrong_of_float32(u32 amax, const u32* values, u32 count) {
    return wrong_of_float32<I8>(amax, values, count) + wrong_of_float32<I4>(amax, values, count);
}

extern "C" float kvcache_exponential(float x) { return exponential(x); }

extern "C" float kvcache_alibi_slope(u32 h, u32 c) { return alibi_slope(h, c); }

}  // namespace arithmetic
