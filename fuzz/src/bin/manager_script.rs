//! The target `manager_script` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(manager_script);
