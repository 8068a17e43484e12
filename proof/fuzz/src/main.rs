//! The program of libFuzzer, for the target that `KVCACHE_FUZZ_TARGET` names.
#![no_main]

use std::env;
use std::sync::LazyLock;

use kvcache_fuzz::{Target, target};

static TARGET: LazyLock<Target> =
    LazyLock::new(|| target(&env::var("KVCACHE_FUZZ_TARGET").expect("the name of a target")));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.2)(bytes));
