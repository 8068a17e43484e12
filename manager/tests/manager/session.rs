//! Sessions: what is saved is loaded, in whatever mode, layout and size, or nothing has changed.

use std::path::PathBuf;

use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{Append, CacheSpec, Create, Error, Geometry, KeyForm, Manager, Mode, Rope, SeqId};
use kvcache_testing::manager::memory::Memory;
use kvcache_testing::manager::types::with_types;

pub struct Path {
    pub directory: tempfile::TempDir,
}

impl Path {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path().join("session.safetensors")
    }
}

pub fn spec(mode: Mode, layout: CacheLayout, types: usize, key_form: KeyForm, max_t: usize) -> CacheSpec {
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t };
    let builder = with_types(CacheSpec::builder(geometry), types).layout(layout).mode(mode).key_form(key_form);
    builder.rope(Rope::neox(4, 1e4)).shift_limit(None).fingerprint("model").build().unwrap()
}

pub fn paged(page_size: usize, max_t: usize) -> CacheSpec {
    spec(Mode::Paged { page_size }, CacheLayout::TokenMajor, 1, KeyForm::Roped, max_t)
}

pub struct Cache {
    pub manager: Manager,
    pub memory: Memory,
    /// Bytes for rows of unknown tokens.
    seed: u64,
}

/// All that is to be known of a sequence: its positions and its rows.
pub type Contents = (Vec<i64>, Vec<u8>);

impl Cache {
    pub fn new(spec: &CacheSpec) -> Self {
        let manager = Manager::new(spec.clone()).unwrap();
        Self { manager, memory: Memory::new(spec), seed: 0 }
    }

    pub fn paged(page_size: usize, max_t: usize) -> Self {
        Self::new(&paged(page_size, max_t))
    }

    pub fn slots(&self, seq: SeqId) -> Vec<usize> {
        self.manager.slots(seq).unwrap().collect()
    }

    pub fn contents(&self, seq: SeqId) -> Contents {
        (self.manager.positions(seq).unwrap().collect(), self.memory.read(&self.slots(seq)))
    }

    /// Appends rows, of known tokens or not, and writes them; gives how many were found in the prefix index.
    pub fn append(&mut self, append: Append<'_>, seq: SeqId) -> Result<usize, Error> {
        let step = self.manager.begin_step(&[append])?.apply(&mut self.memory)?;
        let (tokens, cached) = (step.token_ids().to_vec(), step.cached().iter().sum::<i64>() as usize);
        step.commit();
        let slots = self.slots(seq);
        // A window may have removed the first of them.
        for (&slot, &token) in slots.iter().rev().zip(tokens.iter().rev()) {
            self.seed += 1;
            let seed = if token < 0 { self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { token as u64 };
            // Bytes that are finite numbers in every type.
            let row: Vec<u8> = (0..self.memory.spec.bytes_per_token())
                .map(|i| ((seed >> (i % 7 * 8)) as u8 ^ i as u8) & 0x3b)
                .collect();
            self.memory.write(&[slot], &row);
        }
        self.manager.check().unwrap();
        Ok(cached)
    }

    pub fn create(&mut self, tokens: &[u32]) -> SeqId {
        let seq = self.manager.create();
        self.append(Append::tokens(seq, tokens), seq).unwrap();
        seq
    }

    pub fn load(&mut self, path: &Path) -> Result<Vec<SeqId>, Error> {
        let loaded = self.manager.load(path.file(), &mut self.memory);
        self.manager.check().unwrap();
        loaded
    }

    /// Loads one sequence, which is refused: nothing changes.
    pub fn refuses(&mut self, path: &Path, index: usize) -> Error {
        let (manager, memory) = (self.manager.clone(), self.memory.clone());
        let error = self.manager.load_seq(path.file(), &mut self.memory, index).unwrap_err();
        self.manager.check().unwrap();
        assert!(self.manager == manager);
        assert!(self.memory == memory);
        error
    }
}

#[test]
fn pages_are_shared_sealed_and_found_again() {
    let path = Path::new();
    let mut cache = Cache::paged(4, 64);
    let a = cache.create(&(0..12).collect::<Vec<_>>());
    let b = cache.manager.fork(a).unwrap();
    cache.manager.seq_rm(b, 6..).unwrap();
    let c = cache.manager.fork(a).unwrap();
    cache.append(Append::tokens(c, &[50, 51]), c).unwrap();
    assert_eq!(cache.manager.stats().used, 16);
    cache.manager.save(path.file(), &cache.memory).unwrap();

    let mut other = Cache::paged(4, 16);
    let loaded = other.load(&path).unwrap();
    let (stats, slots) = (other.manager.stats(), other.slots(loaded[0]));
    assert_eq!((stats.used, stats.shared, stats.free), (16, 12, 0));
    assert_eq!(other.slots(loaded[1]), slots[..6]);
    assert_eq!(other.slots(loaded[2])[..12], slots);

    // Full pages were sealed: a prompt finds all that it can have of them, which is not its last token.
    let mut other = Cache::paged(4, 32);
    let loaded = other.load(&path).unwrap();
    let d = other.manager.create();
    assert_eq!(other.append(Append::tokens(d, &(0..12).collect::<Vec<_>>()), d).unwrap(), 8);
    assert_eq!(other.slots(d)[..8], other.slots(loaded[0])[..8]);
    // And of a freed sequence they stay cached.
    loaded.iter().for_each(|&seq| other.manager.free(seq).unwrap());
    other.manager.free(d).unwrap();
    assert_eq!(other.manager.stats().cached, 12);
    // Not with another salt.
    let e = other.manager.create_with(&Create { salt: b"salt", ..Create::default() });
    assert_eq!(other.append(Append::tokens(e, &(0..12).collect::<Vec<_>>()), e).unwrap(), 0);
}

#[test]
fn a_loaded_prompt_begins_with_pages_that_are_there() {
    let path = Path::new();
    let prompt: Vec<u32> = (0..12).collect();
    let mut cache = Cache::paged(4, 64);
    let a = cache.create(&prompt);
    cache.append(Append::tokens(a, &[70]), a).unwrap();
    cache.manager.save(path.file(), &cache.memory).unwrap();

    // Live pages, then cached ones.
    for freed in [false, true] {
        let mut other = Cache::paged(4, 24);
        let live = other.create(&[&prompt[..8], &[80]].concat());
        let slots = other.slots(live);
        if freed {
            other.manager.free(live).unwrap();
        }
        let before = other.memory.clone();
        let loaded = other.manager.load_seq(path.file(), &mut other.memory, 0).unwrap();
        let written = other.memory.log.written.clone();
        other.manager.check().unwrap();
        assert_eq!(other.slots(loaded)[..8], slots[..8]);
        assert_eq!(written, other.slots(loaded)[8..]);
        assert_eq!(other.memory.read(&slots[..8]), before.read(&slots[..8]));
        assert_eq!(other.contents(loaded), cache.contents(a));
        assert_eq!(other.manager.stats().used, if freed { 16 } else { 20 });
    }

    // Of a prompt of whole pages the last is its own: it has the last token.
    let mut cache = Cache::paged(4, 64);
    let a = cache.create(&prompt);
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let b = cache.manager.load_seq(path.file(), &mut cache.memory, 0).unwrap();
    assert_eq!(cache.slots(b)[..8], cache.slots(a)[..8]);
    assert_ne!(cache.slots(b)[8..], cache.slots(a)[8..]);
    assert_eq!(cache.contents(b), cache.contents(a));
    cache.manager.check().unwrap();
}

/// The removals of a window are remembered, and counts of shifts.
#[test]
fn windows_and_shifts_go_on() {
    let path = Path::new();
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 64 };
    let builder = with_types(CacheSpec::builder(geometry), 5).mode(Mode::Cells).rope(Rope::neox(4, 1e4));
    let spec = builder.window(4).shift_limit(Some(1)).build().unwrap();
    let mut cache = Cache::new(&spec);
    let a = cache.create(&(0..12).collect::<Vec<_>>());
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let mut other = Cache::new(&spec);
    let b = other.load(&path).unwrap()[0];
    assert_eq!(other.contents(b), cache.contents(a));
    for (cache, seq) in [(&mut cache, a), (&mut other, b)] {
        assert!(matches!(cache.manager.seq_rm(seq, 10..), Err(Error::WindowLost { gone: 8, .. })));
        cache.manager.seq_add(seq, 0.., 1).unwrap();
        cache.manager.update(&mut cache.memory).unwrap();
    }
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let mut other = Cache::new(&spec);
    let b = other.load(&path).unwrap()[0];
    assert!(matches!(other.manager.seq_add(b, 0.., 1), Err(Error::ShiftLimit { shifts: 1, limit: 1 })));
}

#[test]
fn a_row_that_a_window_removed_and_a_shift_moved_below_0_is_no_part_of_a_session() {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t: 64 };
    for mode in [Mode::Paged { page_size: 1 }, Mode::Runs, Mode::Cells] {
        let builder = CacheSpec::builder(geometry).mode(mode).rope(Rope::neox(4, 1e4)).window(4);
        let spec = builder.build().unwrap();
        let (mut manager, mut memory) = (Manager::new(spec.clone()).unwrap(), Memory::new(&spec));
        let seq = manager.create();
        manager.begin_step(&[Append::count(seq, 8)]).unwrap().apply(&mut memory).unwrap().commit();
        manager.seq_add(seq, .., -5).unwrap();
        manager.update(&mut memory).unwrap();
        let path = Path::new();
        manager.save(path.file(), &memory).unwrap();

        let mut other = Manager::new(spec.clone()).unwrap();
        let loaded = other.load(path.file(), &mut Memory::new(&spec)).unwrap();
        assert!(other.positions(loaded[0]).unwrap().eq([0, 1, 2]), "{mode:?}");
    }
}
