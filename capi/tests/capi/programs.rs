//! A program in C11, compiled with all warnings as errors, against the shared and the static library. Those in C++ are the
//! book's.

use std::path::Path;

use crate::program::{self, SHARED, STATIC_SANITIZED};

#[test]
fn every_call_and_refusal() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/calls.c");
    for flags in [&SHARED[..], &STATIC_SANITIZED] {
        assert_eq!(program::run("cc", &source, &[&["-std=c11"], flags].concat()), "ok\n");
    }
}
