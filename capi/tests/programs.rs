//! C11 and C++17 programs, compiled with all warnings as errors, against the shared and the static library.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Where cargo has put the libraries of this test's build: beside it, under the names that programs link.
fn libraries() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(deps.join("libkvcache.so").is_file(), "no libkvcache.so in {}", deps.display());
    assert!(deps.join("libkvcache.a").is_file(), "no libkvcache.a in {}", deps.display());
    deps
}

/// What `program` prints when it is built by `compiler` with `flags`, which say how it is linked.
fn run(compiler: &str, program: &str, flags: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = TempDir::new().unwrap();
    let binary = out.path().join("program");
    let built = Command::new(env::var(compiler.to_uppercase()).unwrap_or_else(|_| compiler.to_owned()))
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1", "-g", "-pthread"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/programs").join(program))
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(libraries())
        .args(flags)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let done = Command::new(&binary).env("LD_LIBRARY_PATH", libraries()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{:?}\n{text}\n{errors}", done.status);
    assert!(errors.is_empty(), "{errors}");
    text.into_owned()
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
