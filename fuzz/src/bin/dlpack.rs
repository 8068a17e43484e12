//! The target `dlpack` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(dlpack);
