//! The target `session_reader` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvcache_fuzz::session_reader::run(bytes));
