//! The target `attention` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(attention);
