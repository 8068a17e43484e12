//! The target `conformance_reader` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvcache_fuzz::conformance_reader::run(bytes));
