//! The target `dlpack` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvcache_fuzz::dlpack::run(bytes));
