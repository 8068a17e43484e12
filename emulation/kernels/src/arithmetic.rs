//! Numbers alone: the kernels' quantization, which avoids division and clamping, against the specification's formulas;
//! the attention kernels' exponential, and ALiBi's slopes.

unsafe extern "C" {
    fn kvcache_wrong_of_float16(amax: u32) -> u64;
    fn kvcache_wrong_of_float32(amax: u32, values: *const u32, count: u32) -> u64;
    fn kvcache_exponential(x: f32) -> f32;
    fn kvcache_alibi_slope(h: u32, c: u32) -> f32;
}

/// The number of wrong scales and codes of float16 groups whose largest magnitude has the bits `amax`, which are
/// finite: the scale, and the code of every value that may be in the group, in eight bits and in four.
pub fn wrong_of_float16(amax: u16) -> u64 {
    assert!(amax < 0x7c00, "{amax:#x} is no finite magnitude");
    // SAFETY: takes a number only; any finite magnitude is valid, checked above.
    unsafe { kvcache_wrong_of_float16(amax.into()) }
}

/// The number of wrong scales and codes of a float32 group whose largest magnitude has the bits `amax`: the scale, and
/// the code of each of `values`, which are bits too.
pub fn wrong_of_float32(amax: u32, values: &[u32]) -> u64 {
    assert!(amax < 0x7f80_0000, "{amax:#x} is no finite magnitude");
    assert!(values.len() <= u32::MAX as usize);
    // SAFETY: reads `values.len()` values from `values`; the length fits, checked above.
    unsafe { kvcache_wrong_of_float32(amax, values.as_ptr(), values.len() as u32) }
}

/// e^x as the kernels compute it, for x <= 0 or NaN.
pub fn exponential(x: f32) -> f32 {
    // SAFETY: takes a number only.
    unsafe { kvcache_exponential(x) }
}

/// ALiBi's slope of query head `h` as the kernels compute it; `c` is the largest power of two that is at most the
/// number of heads.
pub fn alibi_slope(h: u32, c: u32) -> f32 {
    // SAFETY: takes numbers only.
    unsafe { kvcache_alibi_slope(h, c) }
}
