//! The golden cases as data, for the conformance kit: their folder and, with the feature `embedded`, archives of them.

/// The folder of `cases`, `static_cases` and `attention_cases` on the machine that built this.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The archives that `build.rs` packs, each a safetensors file of deflated files, by the folders of the cases.
#[cfg(feature = "embedded")]
pub const ARCHIVES: [(&str, &[u8]); 3] = [
    ("cases", include_bytes!(concat!(env!("OUT_DIR"), "/cases"))),
    ("static_cases", include_bytes!(concat!(env!("OUT_DIR"), "/static_cases"))),
    ("attention_cases", include_bytes!(concat!(env!("OUT_DIR"), "/attention_cases"))),
];
