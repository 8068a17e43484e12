//! Keeps the library in memory once it is loaded.
//!
//! ONNX Runtime unloads an operator library with the last session that uses it. The operator's definitions, which live as
//! long as the process because sessions point to them, would then be lost, and be made anew with the next session.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
