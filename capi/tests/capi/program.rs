//! Compiles programs against the library of this test's build, and runs them, with all warnings as errors.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Links the shared library.
const SHARED: [&str; 1] = ["-lkvcache"];

/// Links the static library, with what a static library of Rust's needs of the system's, and the sanitizers.
const STATIC_SANITIZED: [&str; 7] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-l:libkvcache.a", "-lgcc_s", "-ldl", "-lm", "-lc"];

/// Where cargo has put the libraries of this test's build: beside it, under the names that programs link.
fn libraries() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(deps.join("libkvcache.so").is_file(), "no libkvcache.so in {}", deps.display());
    assert!(deps.join("libkvcache.a").is_file(), "no libkvcache.a in {}", deps.display());
    deps
}

/// What the program of a source file prints when it is built by `compiler`, all warnings as errors, with `flags`, which
/// say how it is linked, and with the flags in `KVCACHE_CFLAGS`: libraries that are built for AddressSanitizer need its
/// runtime.
pub fn run(compiler: &str, source: &Path, flags: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let for_libraries = env::var("KVCACHE_CFLAGS").unwrap_or_default();
    let out = TempDir::new().unwrap();
    let binary = out.path().join("program");
    let built = Command::new(env::var(compiler.to_uppercase()).unwrap_or_else(|_| compiler.to_owned()))
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1", "-g", "-pthread"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(libraries())
        .args(flags)
        .args(for_libraries.split_whitespace())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // Its SONAME, as an installation has it.
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    symlink(libraries().join("libkvcache.so"), out.path().join(format!("libkvcache.so.{version}"))).unwrap();
    let done = Command::new(&binary).env("LD_LIBRARY_PATH", out.path()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{:?}\n{text}\n{errors}", done.status);
    assert!(errors.is_empty(), "{errors}");
    text.into_owned()
}

#[test]
fn the_programs_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    for (compiler, standard, source, printed) in [
        ("cc", "-std=c11", "calls.c", "ok\n"),
        ("cc", "-std=c11", "two_sequences.c", "1 2 10 11\npage_range\n"),
        ("c++", "-std=c++17", "layers.cpp", "300 rows of key in each of 2 layers\n"),
    ] {
        for flags in [&SHARED[..], &STATIC_SANITIZED] {
            assert_eq!(run(compiler, &folder.join(source), &[&[standard], flags].concat()), printed);
        }
    }
}

/// What the piece of a program on the crate's page leaves out.
const BEFORE: &str = "
#include <kvcache.h>
#include <stdio.h>
void piece(DLTensor current_key, DLTensor current_value, DLTensor seqstarts, DLTensor kvstarts, DLTensor cachestarts,
           DLTensor start_pos, DLTensor max_seqlen, DLTensor max_kvlen, DLTensor cache, DLTensor key, DLTensor value);
void piece(DLTensor current_key, DLTensor current_value, DLTensor seqstarts, DLTensor kvstarts, DLTensor cachestarts,
           DLTensor start_pos, DLTensor max_seqlen, DLTensor max_kvlen, DLTensor cache, DLTensor key, DLTensor value)
{
";
const AFTER: &str = "
}
int main(void) { return 0; }
";

#[test]
fn the_piece_on_the_front_page_compiles() {
    let (_, rest) = include_str!("../../README.md").split_once("```c\n").expect("a block of C");
    let (piece, _) = rest.split_once("```").expect("its end");
    let out = TempDir::new().unwrap();
    let source = out.path().join("piece.c");
    std::fs::write(&source, format!("{BEFORE}{piece}{AFTER}")).unwrap();
    assert_eq!(run("cc", &source, &["-std=c11", "-lkvcache"]), "");
}
