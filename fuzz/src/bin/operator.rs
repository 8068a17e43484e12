//! The target `operator` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(operator);
