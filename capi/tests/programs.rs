//! C11 and C++17 programs, compiled with all warnings as errors, against the shared and the static library.

mod common;

use std::path::Path;

use common::program;

/// What one of `programs/` prints.
fn run(compiler: &str, name: &str, flags: &[&str]) -> String {
    program::run(compiler, &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name), flags)
}

/// What the system's libraries a static library of Rust's needs.
const STATIC: [&str; 5] = ["-l:libkvcache.a", "-lgcc_s", "-ldl", "-lm", "-lc"];

#[test]
fn c_with_the_shared_library() {
    assert_eq!(run("cc", "calls.c", &["-std=c11", "-lkvcache"]), "ok\n");
}

#[test]
fn c_with_the_static_library_under_sanitizers() {
    let flags = [&["-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], &STATIC[..]].concat();
    assert_eq!(run("cc", "calls.c", &flags), "ok\n");
}

#[test]
fn cpp_with_the_shared_library() {
    assert_eq!(run("c++", "decode.cpp", &["-std=c++17", "-lkvcache"]), "ok\n");
}

#[test]
fn cpp_with_the_static_library_under_sanitizers() {
    let flags = [&["-std=c++17", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], &STATIC[..]].concat();
    assert_eq!(run("c++", "decode.cpp", &flags), "ok\n");
}
