//! The attention kernels' exponential and ALiBi's slopes.

unsafe extern "C" {
    fn kvcache_exponential(x: f32) -> f32;
    fn kvcache_alibi_slope(h: u32, c: u32) -> f32;
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
