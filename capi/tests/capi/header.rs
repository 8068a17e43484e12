//! The committed header is what the sources give. `KVCACHE_WRITE_HEADER=1` writes it anew.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut made = Vec::new();
    cbindgen::generate(root).unwrap().write(&mut made);
    // Rust's heading of what a caller must see to.
    let made = String::from_utf8(made).unwrap().replace("# Safety\n", "The caller sees to it:\n");
    let header = root.join("include/kvcache.h");
    if env::var_os("KVCACHE_WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    let committed = fs::read_to_string(&header).unwrap_or_default();
    assert!(committed == made, "{} is old: `make header` writes it anew", header.display());
}
