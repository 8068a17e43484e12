//! The target `session_reader` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(session_reader);
