//! The target `manager_script` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvcache_fuzz::manager_script::run(bytes));
