//! Session files of any bytes, but with the digest that they should have. What is loaded is sound: invariants hold,
//! each sequence can be saved and loaded again with the same positions and bytes, and appended to. What is refused
//! changes nothing.

use std::fs;
use std::path::Path;

use kvcache_manager::schema::{CacheLayout, ElementType};
use kvcache_manager::{Append, CacheSettings, Geometry, KeyForm, Mode, Rope, RopeStyle};
use kvcache_testing::manager::managed::Managed;
use xxhash_rust::xxh3::xxh3_128;

/// Tokens of the sequence that is there, which no file has.
const LIVE: [u32; 3] = [4_000_000_001, 4_000_000_007, 4_000_000_009];

/// The cache that the kept session is of; key form and mode differ.
fn spec(mode: Mode, key_form: KeyForm) -> CacheSettings {
    CacheSettings {
        geometry: Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 64 },
        layout: CacheLayout::HeadMajor,
        cache_type: ElementType::Int8,
        quant: Some((4, ElementType::Float16)),
        rope: Some(Rope::with_frequencies(RopeStyle::Neox, vec![1.0, 0.1 + 0.2])),
        fingerprint: "a \"model\" \\ ü".into(),
        mode,
        key_form,
        ..CacheSettings::default()
    }
}

/// Loads one sequence, or all, which `empty` has none of; then what was loaded can be saved, loaded again, and appended
/// to.
fn load(path: &Path, before: &Managed, index: Option<usize>, empty: &Managed) {
    let mut cache = before.clone();
    let loaded = match index {
        Some(index) => cache.manager.load_seq(path, &mut cache.memory, index).map(|seq| vec![seq]),
        None => cache.manager.load(path, &mut cache.memory),
    };
    cache.manager.check().expect("a manager whose invariants hold");
    let seqs = match loaded {
        Ok(seqs) => seqs,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(cache == *before, "what is refused has changed something: {error}");
            return;
        }
    };
    let again = path.with_extension("again");
    for &seq in &seqs {
        let expected = cache.contents(seq);
        assert!(expected.0.is_sorted() && expected.0.iter().all(|&at| at >= 0));
        cache.manager.save_seq(&again, &cache.memory, seq).expect("a saved session");
        let mut other = empty.clone();
        let loaded = other.manager.load_seq(&again, &mut other.memory, 0).expect("what was saved");
        assert!(other.contents(loaded) == expected, "another sequence was saved");
    }
    for &seq in &seqs {
        if let Ok(planned) = cache.manager.begin_step(&[Append::tokens(seq, &[1, 2, 3])]) {
            planned.apply(&mut cache.memory).expect("an applied step").commit();
        }
    }
    cache.manager.check().expect("a manager whose invariants hold");
}

pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some((before, digest)) = bytes.split_last_chunk_mut::<16>() {
        *digest = xxh3_128(before).to_be_bytes();
    }
    let folder = ["/dev/shm".into(), std::env::temp_dir()].into_iter().find(|folder| folder.is_dir());
    let path = folder.expect("a folder").join(format!("session_reader.{}", std::process::id()));
    fs::write(&path, &bytes).expect("a written file");
    let raw = bytes.windows(16).any(|window| window == b"\"key_form\":\"raw\"");
    let key_form = if raw { KeyForm::PreRope } else { KeyForm::Roped };
    for mode in [Mode::Paged { page_size: 2 }, Mode::Paged { page_size: 16 }, Mode::Runs, Mode::Cells] {
        let mut empty = Managed::new(spec(mode, key_form));
        empty.memory.cache.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        // Something that is there already.
        let mut some = empty.clone();
        let live = some.manager.create();
        some.append(&[Append::tokens(live, &LIVE)]);
        for (before, index) in [(&some, Some(0)), (&some, Some(2)), (&empty, None)] {
            load(&path, before, index, &empty);
        }
    }
}
