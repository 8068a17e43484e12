//! Session files of any bytes, but with the digest that they should have. What is loaded is sound: invariants hold,
//! each sequence can be saved and loaded again with the same positions and bytes, and appended to. What is refused
//! changes nothing.

use std::fs;
use std::path::Path;

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::write;
use kvcache_manager::op::Serial;
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, Geometry, HostMemory, KeyForm, Manager, Mode, Rope, RopeStyle, SeqId,
};
use xxhash_rust::xxh3::xxh3_128;

/// Tokens of the sequence that is there, which no file has.
const LIVE: [u32; 3] = [4_000_000_001, 4_000_000_007, 4_000_000_009];

/// The cache that the kept session is of; key form and mode differ.
fn spec(mode: Mode, key_form: KeyForm) -> CacheSpec {
    let geometry = Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 64 };
    let builder = CacheSpec::builder(geometry).quantized(QuantBit::Eight, 4, ElementType::Float16);
    let rope = Rope::with_frequencies(RopeStyle::Neox, vec![1.0, 0.1 + 0.2]);
    let builder = builder.layout(CacheLayout::HeadMajor).rope(rope).fingerprint("a \"model\" \\ ü");
    builder.mode(mode).key_form(key_form).build().expect("a legal specification")
}

/// A manager with the cache that it manages.
#[derive(Debug, Clone, PartialEq)]
struct Managed {
    manager: Manager,
    cache: Tensor,
    scale: Tensor,
}

impl Managed {
    fn new(spec: CacheSpec) -> Self {
        let zeros = |element, shape: [usize; 5]| Tensor::zeros(element, shape.to_vec()).expect("a small cache");
        let mut cache = zeros(ElementType::Int8, spec.cache_shape());
        cache.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let scale = zeros(ElementType::Float16, spec.scale_shape().expect("a quantized cache"));
        Self { manager: Manager::new(spec).expect("a small manager"), cache, scale }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Manager, &mut HostMemory<'_>) -> R) -> R {
        let spec = self.manager.spec().clone();
        let memory = HostMemory::new(&spec, write(&mut self.cache), Some(write(&mut self.scale)), &Serial);
        act(&mut self.manager, &mut memory.expect("the memory of the specification"))
    }

    /// A sequence's positions, and its rows.
    fn contents(&mut self, seq: SeqId) -> (Vec<i64>, Vec<u8>) {
        self.with(|manager, memory| {
            let slots: Vec<usize> = manager.slots(seq).expect("a sequence").collect();
            let mut rows = vec![0; slots.len() * manager.spec().bytes_per_token()];
            memory.read_rows(&slots, &mut rows).expect("rows of the cache");
            (manager.positions(seq).expect("a sequence").collect(), rows)
        })
    }
}

/// Loads one sequence, or all; then what was loaded can be saved, loaded again, and appended to.
fn load(path: &Path, before: &Managed, index: Option<usize>) {
    let mut managed = before.clone();
    let loaded = managed.with(|manager, memory| match index {
        Some(index) => manager.load_seq(path, memory, index).map(|seq| vec![seq]),
        None => manager.load(path, memory),
    });
    managed.manager.check().expect("a manager whose invariants hold");
    let seqs = match loaded {
        Ok(seqs) => seqs,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(managed == *before, "what is refused has changed something: {error}");
            return;
        }
    };
    let again = path.with_extension("again");
    for &seq in &seqs {
        let expected = managed.contents(seq);
        assert!(expected.0.is_sorted() && expected.0.iter().all(|&at| at >= 0));
        managed.with(|manager, memory| manager.save_seq(&again, memory, seq)).expect("a saved session");
        let mut other = Managed::new(before.manager.spec().clone());
        let loaded = other.with(|manager, memory| manager.load_seq(&again, memory, 0)).expect("what was saved");
        assert!(other.contents(loaded) == expected, "another sequence was saved");
    }
    for &seq in &seqs {
        managed.with(|manager, memory| {
            if let Ok(planned) = manager.begin_step(&[Append::tokens(seq, &[1, 2, 3])]) {
                planned.apply(memory).expect("an applied step").commit();
            }
        });
    }
    managed.manager.check().expect("a manager whose invariants hold");
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
        let empty = Managed::new(spec(mode, key_form));
        // Something that is there already.
        let mut managed = empty.clone();
        let live = managed.manager.create();
        managed.with(|manager, memory| {
            let planned = manager.begin_step(&[Append::tokens(live, &LIVE)]).expect("room");
            planned.apply(memory).expect("an applied step").commit();
        });
        for (before, index) in [(&managed, Some(0)), (&managed, Some(2)), (&empty, None)] {
            load(&path, before, index);
        }
    }
}
