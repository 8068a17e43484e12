//! Session files of any bytes, but with the digest that they should have. What is loaded is sound: invariants hold, each
//! sequence can be saved and loaded again with the same positions and bytes, and appended to. What is refused changes
//! nothing.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, Geometry, KeyForm, Manager, MemoryError, Mode, Rope, RopeStyle, Rotation, RowCopy,
    SeqId,
};
use serde_json::Map;
use xxhash_rust::xxh3::xxh3_128;

use crate::tally::{self, directory};

/// The bytes of a row: 2 layers, each with a key and a value of 4 int8 and a scale.
const ROW: usize = 24;
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

/// Where the data ends, as the header says, or the file.
fn end(bytes: &[u8]) -> usize {
    let header = |len: u64| bytes.get(8..)?.get(..usize::try_from(len).ok()?);
    let header = bytes.first_chunk().and_then(|&len| header(u64::from_le_bytes(len)));
    let tensors = header.and_then(|header| serde_json::from_slice::<Map<_, _>>(header).ok());
    let ends =
        tensors.iter().flat_map(|tensors| tensors.values()).filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    let start = header.map_or(0, <[u8]>::len) + 8;
    ends.max().and_then(|end| start.checked_add(end.try_into().ok()?)).map_or(bytes.len(), |end| end.min(bytes.len()))
}

/// Makes the last of the data the digest of what is before it.
fn sign(bytes: &mut [u8]) {
    let end = end(bytes);
    if let Some((before, digest)) = bytes[..end].split_last_chunk_mut::<16>() {
        *digest = xxh3_128(before).to_be_bytes();
    }
}

thread_local! {
    static FILE: RefCell<(PathBuf, File)> = {
        let path = directory().join(format!("session_reader.{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        RefCell::new((path, file))
    };
}

/// Replaces what is in the file.
fn write(bytes: &[u8]) -> PathBuf {
    FILE.with_borrow_mut(|(path, file)| {
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(bytes)).expect("a written file");
        path.clone()
    })
}

/// The rows of a cache, by slot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rows(Vec<[u8; ROW]>);

impl CacheMemory for Rows {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        copies.iter().for_each(|copy| self.0.copy_within(copy.src..copy.src + copy.len, copy.dst));
        Ok(())
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        unreachable!("no position was changed: {rotations:?}")
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        assert_eq!(rows.len(), slots.len() * ROW);
        rows.as_chunks_mut().0.iter_mut().zip(slots).for_each(|(row, &slot)| *row = self.0[slot]);
        Ok(())
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(rows.len(), slots.len() * ROW);
        rows.as_chunks().0.iter().zip(slots).for_each(|(row, &slot)| self.0[slot] = *row);
        Ok(())
    }

    fn write_layer_rows(&mut self, layer: usize, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        unreachable!("sessions have whole rows, not layer {layer}")
    }
}

/// Loads one sequence, or all; then what was loaded can be saved, loaded again, and appended to.
fn load(path: &Path, manager: &Manager, memory: &Rows, index: Option<usize>) {
    let (before, bytes_before) = (manager, memory);
    let (mut manager, mut memory) = (manager.clone(), memory.clone());
    let loaded = match index {
        Some(index) => manager.load_seq(path, &mut memory, index).map(|seq| vec![seq]),
        None => manager.load(path, &mut memory),
    };
    tally::count(loaded.is_ok());
    manager.check().expect("a manager whose invariants hold");
    let seqs = match loaded {
        Ok(seqs) => seqs,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(manager == *before && memory == *bytes_before, "what is refused has changed something: {error}");
            return;
        }
    };
    let contents = |manager: &Manager, memory: &Rows, seqs: &[SeqId]| -> Vec<(Vec<i64>, Vec<[u8; ROW]>)> {
        let rows = |seq| manager.slots(seq).expect("a sequence").map(|slot| memory.0[slot]).collect();
        seqs.iter().map(|&seq| (manager.positions(seq).expect("a sequence").collect(), rows(seq))).collect()
    };
    let expected = contents(&manager, &memory, &seqs);
    assert!(expected.iter().all(|(positions, _)| positions.is_sorted() && positions.iter().all(|&at| at >= 0)));
    let again = path.with_extension("again");
    for (&seq, expected) in seqs.iter().zip(&expected) {
        manager.save_seq(&again, &memory, seq).expect("a saved session");
        let mut other = Manager::new(before.spec().clone()).expect("a small manager");
        let mut rows = bytes_before.clone();
        let loaded = other.load_seq(&again, &mut rows, 0).expect("what was saved");
        assert!(contents(&other, &rows, &[loaded])[0] == *expected, "another sequence was saved");
    }
    for &seq in &seqs {
        if let Ok(planned) = manager.begin_step(&[Append::tokens(seq, &[1, 2, 3])]) {
            planned.apply(&mut memory).expect("an applied step").commit();
        }
    }
    manager.check().expect("a manager whose invariants hold");
}

pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    sign(&mut bytes);
    let path = write(&bytes);
    let raw = bytes.windows(16).any(|window| window == b"\"key_form\":\"raw\"");
    let key_form = if raw { KeyForm::Raw } else { KeyForm::Roped };
    for mode in [Mode::Paged { page_size: 2 }, Mode::Paged { page_size: 16 }, Mode::Runs, Mode::Cells] {
        let spec = spec(mode, key_form);
        let mut memory = Rows((0..64).map(|slot| [128 + slot; ROW]).collect());
        let empty = Manager::new(spec).expect("a small manager");
        // Something that is there already.
        let mut manager = empty.clone();
        let live = manager.create();
        manager.begin_step(&[Append::tokens(live, &LIVE)]).expect("room").apply(&mut memory).expect("applied").commit();
        for (manager, index) in [(&manager, Some(0)), (&manager, Some(2)), (&empty, None)] {
            load(&path, manager, &memory, index);
        }
    }
}
