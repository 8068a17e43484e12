//! Keeps the library loaded once it is.
//!
//! ONNX Runtime closes an operator library with the last session that uses it. The operator's definitions, to which
//! sessions point, are made once for the process: were the library unloaded, they would leak, and the next session make
//! new ones.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
