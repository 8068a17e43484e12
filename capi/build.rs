//! Gives the shared library a SONAME of the versions that it can take the place of: before 1.0, all versions with
//! one minor number.

use std::env;

fn main() -> Result<(), env::VarError> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS")? == "linux" {
        let [major, minor] = [env::var("CARGO_PKG_VERSION_MAJOR")?, env::var("CARGO_PKG_VERSION_MINOR")?];
        let version = if major == "0" { format!("0.{minor}") } else { major };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkvcache.so.{version}");
    }
    Ok(())
}
