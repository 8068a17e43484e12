//! The target `conformance_reader` for libFuzzer.
#![no_main]

kvcache_fuzz::program!(conformance_reader);
