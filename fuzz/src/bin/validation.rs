//! The target `validation` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(validation);
