//! Session files of any bytes, but with the digest that they should have. A file is loaded if and only if the rules of
//! `session_oracle` allow it, and then every sequence has the positions, tokens and bytes that the file says, also once
//! it is saved again; what is refused changes nothing.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, Geometry, KeyForm, Manager, MemoryError, Mode, Rope, RopeStyle, Rotation, RowCopy,
    SeqId,
};
use serde_json::Map;

use crate::manager::directory;
use crate::session_oracle::{FINGERPRINT, FREQUENCIES, ROW, Saved, Session, digest, digest_at, tokens_agree};
use crate::tally;

/// So many rows, in pages of their own, fit beside those that are there.
const ROOM: usize = 48;
/// Tokens of the sequence that is there, which no file has.
const LIVE: [u32; 3] = [4_000_000_001, 4_000_000_007, 4_000_000_009];

/// The cache that the kept session is of; key form and mode differ.
fn spec(mode: Mode, key_form: KeyForm) -> CacheSpec {
    let geometry = Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 64 };
    let builder = CacheSpec::builder(geometry).quantized(QuantBit::Eight, 4, ElementType::Float16);
    let rope = Rope::with_frequencies(RopeStyle::Neox, FREQUENCIES.to_vec());
    let builder = builder.layout(CacheLayout::HeadMajor).rope(rope).fingerprint(FINGERPRINT);
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

/// Puts the digest of the bytes into its place, if there is one: not of any behind the data.
fn sign(bytes: &mut [u8]) {
    let end = end(bytes);
    let bytes = &mut bytes[..end];
    if let (Some(start), Some(digest)) = (digest_at(bytes), digest(bytes)) {
        bytes[start..start + 32].copy_from_slice(digest.as_bytes());
    }
}

thread_local! {
    /// One file for all runs.
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
}

/// A cache, and what the file says that its manager is given.
struct Reading<'a> {
    path: &'a Path,
    key_form: KeyForm,
    file: Option<&'a Session>,
    manager: Manager,
    memory: Rows,
}

impl Reading<'_> {
    /// Loads one sequence, or all.
    fn load(&mut self, index: Option<usize>) -> Result<Vec<SeqId>, kvcache_manager::Error> {
        match index {
            Some(index) => self.manager.load_seq(self.path, &mut self.memory, index).map(|seq| vec![seq]),
            None => self.manager.load(self.path, &mut self.memory),
        }
    }

    /// The sequences that are to be loaded, if they may be; and whether there is certainly room for them.
    fn expected(&self, index: Option<usize>) -> Option<(Vec<Saved>, bool)> {
        let sequences = &self.file?.sequences;
        let wanted = index.map_or(Some(&sequences[..]), |index| Some(std::slice::from_ref(sequences.get(index)?)))?;
        let page_size = self.manager.spec().page_size();
        let need: usize = wanted.iter().map(|saved| saved.rows.len().next_multiple_of(page_size)).sum();
        tokens_agree(wanted).then(|| (wanted.to_vec(), need <= ROOM))
    }

    /// Loads one sequence, or all, and compares.
    fn run(mut self, index: Option<usize>) {
        let (before, expected) = (self.manager.clone(), self.expected(index));
        let loaded = self.load(index);
        tally::count(loaded.is_ok());
        self.manager.check().expect("a manager whose invariants hold");
        match (loaded, expected) {
            (Ok(seqs), Some((expected, _))) => self.compare(&seqs, &expected),
            (Ok(_), None) => panic!("a file that breaks a rule is loaded"),
            (Err(error), Some((_, true))) if self.file.is_some_and(|file| file.is_plain) => {
                panic!("a session is refused: {error}")
            }
            (Err(error), _) => {
                assert!(!error.to_string().is_empty());
                assert!(self.manager == before, "what is refused has changed something");
            }
        }
    }

    /// Whether sequences are as the file says, and so is the file that they are saved to.
    fn compare(&mut self, seqs: &[SeqId], expected: &[Saved]) {
        let file = self.file.expect("a file that may be loaded");
        assert_eq!(seqs.len(), expected.len());
        for (&seq, saved) in seqs.iter().zip(expected) {
            let positions: Vec<i64> = self.manager.positions(seq).expect("a sequence").collect();
            assert_eq!(positions, saved.positions, "positions of {seq:?}");
            let rows: Vec<_> = self.manager.slots(seq).expect("a sequence").map(|slot| self.memory.0[slot]).collect();
            assert!(rows.iter().eq(saved.rows.iter().map(|&row| &file.rows[row])), "rows of {seq:?} are others");
        }
        let others = self.manager.stats().sequences - seqs.len();
        let path = self.path.with_extension("again");
        self.manager.save(&path, &self.memory).expect("a saved session");
        let bytes = fs::read(&path).expect("what was saved");
        let again = Session::read(&bytes, self.key_form).expect("a legal session");
        assert_eq!(again.sequences.len(), others + expected.len());
        for (got, saved) in again.sequences[others..].iter().zip(expected) {
            let rows = got.rows.iter().map(|&row| again.rows[row]);
            assert!(rows.eq(saved.rows.iter().map(|&row| file.rows[row])), "other rows are saved");
            let known = got.tokens.len();
            // Pages that sequences share have the tokens that the first of them knows.
            let shares = matches!(self.manager.spec().mode(), Mode::Paged { .. }) && expected.len() > 1;
            assert!(known == saved.known() || shares && known < saved.known(), "{known} tokens are saved of {saved:?}");
            let tokens = saved.tokens[..known].to_vec();
            let saved = Saved { rows: got.rows.clone(), tokens, ..saved.clone() };
            assert_eq!(*got, saved, "another sequence is saved");
        }
        for &seq in seqs {
            if let Ok(planned) = self.manager.begin_step(&[Append::tokens(seq, &[1, 2, 3])]) {
                planned.apply(&mut self.memory).expect("an applied step").commit();
            }
        }
        self.manager.check().expect("a manager whose invariants hold");
    }
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    sign(&mut bytes);
    let path = write(&bytes);
    let raw = bytes.windows(16).any(|window| window == b"\"key_form\":\"raw\"");
    let key_form = if raw { KeyForm::Raw } else { KeyForm::Roped };
    let file = Session::read(&bytes, key_form);
    for mode in [Mode::Paged { page_size: 2 }, Mode::Paged { page_size: 16 }, Mode::Runs, Mode::Cells] {
        let spec = spec(mode, key_form);
        let mut memory = Rows((0..64).map(|slot| [128 + slot; ROW]).collect());
        let empty = Manager::new(spec).expect("a small manager");
        // Something that is there already.
        let mut manager = empty.clone();
        let live = manager.create();
        manager.begin_step(&[Append::tokens(live, &LIVE)]).expect("room").apply(&mut memory).expect("applied").commit();
        for (manager, index) in [(&manager, Some(0)), (&manager, Some(2)), (&empty, None)] {
            let (manager, memory) = (manager.clone(), memory.clone());
            Reading { path: &path, key_form, file: file.as_ref(), manager, memory }.run(index);
        }
    }
}
