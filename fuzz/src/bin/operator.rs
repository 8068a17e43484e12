//! The target `operator` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvcache_fuzz::operator::run(bytes));
