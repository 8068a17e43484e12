//! The committed header is what the sources give. `KVCACHE_WRITE_HEADER=1` writes it anew.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_root_or_default(root);
    let [major, minor, patch] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let version = format!(
        "\n\n/* The version of this header; kvcache_version() gives the library's. */\n\
         #define KVCACHE_VERSION_MAJOR {major}\n\
         #define KVCACHE_VERSION_MINOR {minor}\n\
         #define KVCACHE_VERSION_PATCH {patch}"
    );
    config.after_includes.get_or_insert_default().push_str(&version);
    let mut made = Vec::new();
    cbindgen::generate_with_config(root, config).unwrap().write(&mut made);
    // Rust's heading of what a caller must see to.
    let made = String::from_utf8(made).unwrap().replace("# Safety\n", "The caller must ensure:\n");
    let header = root.join("include/kvcache.h");
    if env::var_os("KVCACHE_WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    let committed = fs::read_to_string(&header).unwrap_or_default();
    assert!(committed == made, "{} is old: `make header` writes it anew", header.display());
}
