//! Scales and codes against division, rounding and clamping as the specification has them.

unsafe extern "C" {
    fn kvcache_wrong_of_float16(amax: u32) -> u64;
    fn kvcache_wrong_of_float32(amax: u32, values: *const u32, count: u32) -> u64;
}

/// How many scales and codes are wrong for float16 groups whose largest magnitude has the bits `amax`, which are
/// finite: the scale, and the code of every value that may be in the group, in eight bits and in four.
pub fn wrong_of_float16(amax: u16) -> u64 {
    assert!(amax < 0x7c00, "{amax:#x} is no finite magnitude");
    // SAFETY: plain arithmetic on numbers.
    unsafe { kvcache_wrong_of_float16(amax.into()) }
}

/// As [`wrong_of_float16`], for float32 groups and some values, given as bits.
pub fn wrong_of_float32(amax: u32, values: &[u32]) -> u64 {
    assert!(amax < 0x7f80_0000, "{amax:#x} is no finite magnitude");
    assert!(values.len() <= u32::MAX as usize);
    // SAFETY: reads the values, which are as many.
    unsafe { kvcache_wrong_of_float32(amax, values.as_ptr(), values.len() as u32) }
}
