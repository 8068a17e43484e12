//! Sessions where the model of scripts cannot tell: what is shared and found again, what goes on, what is refused and
//! why. (That rows come back in any mode, and that a memory that fails changes nothing, is among the scripts; what a
//! file may say is the unit tests' matter.)

use std::path::Path;

use kvcache_manager::schema::{CacheLayout, ElementType};
use kvcache_manager::{
    Append, CacheSettings, Create, Error, Geometry, KeyForm, Mode, Rope, RopeStyle, SeqId, SessionError, ShiftLimit,
};
use kvcache_testing::manager::managed::Managed;
use tempfile::{NamedTempFile, TempPath};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 64 };

fn settings(mode: Mode, max_t: usize, types: usize) -> CacheSettings {
    use ElementType::{Float16, Float32, Int4, Int8};
    let (cache_type, quant) = [
        (Float32, None),
        (Float16, None),
        (Int8, None),
        (Int8, Some((2, Float32))),
        (Int8, Some((4, Float16))),
        (Int4, Some((4, Float32))),
    ][types];
    CacheSettings {
        geometry: Geometry { max_t, ..GEOMETRY },
        mode,
        cache_type,
        quant,
        rope: Some(Rope::neox(4, 1e4)),
        shift_limit: ShiftLimit::Unlimited,
        fingerprint: "model".into(),
        ..CacheSettings::default()
    }
}

fn paged(page_size: usize, max_t: usize) -> Managed {
    Managed::new(settings(Mode::Paged { page_size }, max_t, 1))
}

/// Appends tokens and writes rows that follow from them; gives how many tokens were found in the prefix index.
fn append(cache: &mut Managed, seq: SeqId, tokens: &[u32]) -> usize {
    let found = cache.append(&[Append::tokens(seq, tokens)])[0];
    // A window may have removed the first of them.
    for (slot, &token) in cache.slots(seq).into_iter().rev().zip(tokens.iter().rev()) {
        // Bytes that are finite numbers in every type.
        let len = cache.memory.spec.bytes_per_token();
        let row: Vec<u8> = (0..len).map(|i| ((token >> (i % 3 * 8)) as u8 ^ i as u8) & 0x3b).collect();
        cache.memory.write(&[slot], &row);
    }
    found
}

fn create(cache: &mut Managed, tokens: &[u32]) -> SeqId {
    let seq = cache.manager.create();
    append(cache, seq, tokens);
    seq
}

/// A file with all sequences, which is removed when it is dropped.
fn save(cache: &mut Managed) -> TempPath {
    let path = NamedTempFile::new().unwrap().into_temp_path();
    cache.manager.save(&path, &cache.memory).unwrap();
    path
}

fn load(cache: &mut Managed, path: &Path) -> Vec<SeqId> {
    let loaded = cache.manager.load(path, &mut cache.memory).unwrap();
    cache.manager.check().unwrap();
    loaded
}

/// Loads one sequence, which is refused: nothing changes.
fn refuses(cache: &mut Managed, path: &Path, index: usize) -> Error {
    let before = cache.clone();
    let error = cache.manager.load_seq(path, &mut cache.memory, index).unwrap_err();
    cache.manager.check().unwrap();
    assert!(*cache == before, "{error} has changed something");
    error
}

#[test]
fn pages_are_shared_full_and_found_again() {
    let prompt: Vec<u32> = (0..12).collect();
    let mut cache = paged(4, 64);
    let a = create(&mut cache, &prompt);
    let b = cache.manager.fork(a).unwrap();
    cache.manager.seq_rm(b, 6..).unwrap();
    let c = cache.manager.fork(a).unwrap();
    append(&mut cache, c, &[50, 51]);
    assert_eq!(cache.manager.stats().used, 16);
    let path = save(&mut cache);

    let mut other = paged(4, 16);
    let loaded = load(&mut other, &path);
    let (stats, slots) = (other.manager.stats(), other.slots(loaded[0]));
    assert_eq!((stats.used, stats.shared, stats.free), (16, 12, 0));
    assert_eq!(other.slots(loaded[1]), slots[..6]);
    assert_eq!(other.slots(loaded[2])[..12], slots);

    // Full pages are in the index: a prompt finds all that it can have of them, which is not its last token.
    let mut other = paged(4, 32);
    let loaded = load(&mut other, &path);
    let d = other.manager.create();
    assert_eq!(append(&mut other, d, &prompt), 8);
    assert_eq!(other.slots(d)[..8], other.slots(loaded[0])[..8]);
    // Those of a freed sequence stay cached.
    loaded.iter().for_each(|&seq| other.manager.free(seq).unwrap());
    other.manager.free(d).unwrap();
    assert_eq!(other.manager.stats().cached, 12);
    // Not with another salt.
    let e = other.manager.create_with(&Create { salt: b"salt", ..Create::default() });
    assert_eq!(append(&mut other, e, &prompt), 0);
}

#[test]
fn a_loaded_prompt_begins_with_pages_that_are_there() {
    let prompt: Vec<u32> = (0..12).collect();
    let mut cache = paged(4, 64);
    let a = create(&mut cache, &prompt);
    append(&mut cache, a, &[70]);
    let path = save(&mut cache);
    // Live pages, then cached ones.
    for freed in [false, true] {
        let mut other = paged(4, 24);
        let live = create(&mut other, &[&prompt[..8], &[80]].concat());
        let slots = other.slots(live);
        if freed {
            other.manager.free(live).unwrap();
        }
        let before = other.memory.clone();
        let loaded = other.manager.load_seq(&path, &mut other.memory, 0).unwrap();
        other.manager.check().unwrap();
        assert_eq!(other.slots(loaded)[..8], slots[..8]);
        assert_eq!(other.memory.log.written, other.slots(loaded)[8..]);
        assert_eq!(other.memory.read(&slots[..8]), before.read(&slots[..8]));
        assert_eq!(other.contents(loaded), cache.contents(a));
        assert_eq!(other.manager.stats().used, if freed { 16 } else { 20 });
    }
    // The last page of a prompt of whole pages is its own: it has the last token.
    let mut cache = paged(4, 64);
    let a = create(&mut cache, &prompt);
    let path = save(&mut cache);
    let b = cache.manager.load_seq(path, &mut cache.memory, 0).unwrap();
    assert_eq!(cache.slots(b)[..8], cache.slots(a)[..8]);
    assert_ne!(cache.slots(b)[8..], cache.slots(a)[8..]);
    assert_eq!(cache.contents(b), cache.contents(a));
}

/// The removals of a window are remembered, and counts of shifts.
#[test]
fn windows_and_shifts_go_on() {
    let spec =
        || CacheSettings { window: Some(4), shift_limit: ShiftLimit::Updates(1), ..settings(Mode::Cells, 64, 5) };
    let mut cache = Managed::new(spec());
    let a = create(&mut cache, &(0..12).collect::<Vec<_>>());
    let path = save(&mut cache);
    let mut other = Managed::new(spec());
    let b = load(&mut other, &path)[0];
    assert_eq!(other.contents(b), cache.contents(a));
    for (cache, seq) in [(&mut cache, a), (&mut other, b)] {
        assert!(matches!(cache.manager.seq_rm(seq, 10..), Err(Error::WindowLost { gone: 8, .. })));
        cache.manager.seq_add(seq, 0.., 1).unwrap();
        assert!(matches!(cache.manager.seq_rm(seq, 11..), Err(Error::WindowLost { gone: 9, .. })));
        cache.update();
    }
    let path = save(&mut cache);
    let mut other = Managed::new(spec());
    let b = load(&mut other, &path)[0];
    assert!(matches!(other.manager.seq_add(b, 0.., 1), Err(Error::ShiftLimit { shifts: 1, limit: 1 })));
}

#[test]
fn a_row_that_a_window_removed_and_a_shift_moved_below_0_is_no_part_of_a_session() {
    for mode in [Mode::Paged { page_size: 1 }, Mode::Runs, Mode::Cells] {
        let mut cache = Managed::new(CacheSettings { window: Some(4), ..settings(mode, 64, 1) });
        let seq = cache.manager.create();
        cache.grow(&[seq], 8);
        cache.manager.seq_add(seq, .., -5).unwrap();
        cache.update();
        let path = save(&mut cache);
        let mut other = Managed::new(CacheSettings { window: Some(4), ..settings(mode, 64, 1) });
        let loaded = load(&mut other, &path)[0];
        assert_eq!(other.contents(loaded).0, [0, 1, 2], "{mode:?}");
    }
}

#[test]
fn a_sequence_is_saved_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    for mode in [Mode::Paged { page_size: 4 }, Mode::Runs] {
        let mut cache = Managed::new(settings(mode, 4096, 1));
        let tokens: Vec<u32> = (0..600).collect();
        let (first, seq) = (create(&mut cache, &[7; 9]), create(&mut cache, &tokens));
        let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
        cache.manager.save_seq(&whole, &cache.memory, seq).unwrap();
        let saving = cache.manager.saving(seq).unwrap();
        let mut reads = 0;
        // In more parts than the writer asks for.
        saving
            .write(&parts, |rows, bytes: &mut [u8]| {
                let len = bytes.len() / rows.len();
                for (row, bytes) in rows.zip(bytes.chunks_mut(len)) {
                    if row % 200 == 0 {
                        match reads {
                            0 => _ = create(&mut cache, &[1, 2, 3]),
                            1 => cache.manager.free(first).unwrap(),
                            _ => assert!(!cache.manager.defrag(None).unwrap().is_empty()),
                        }
                        reads += 1;
                    }
                    let read = cache.manager.read_saving(&saving, row..row + 1, bytes, &cache.memory);
                    if let Err(Error::UpdatePending { .. }) = read {
                        cache.update();
                        cache.manager.read_saving(&saving, row..row + 1, bytes, &cache.memory)?;
                    }
                }
                Ok::<_, Error>(())
            })
            .unwrap();
        assert_eq!(reads, 3);
        assert_eq!(std::fs::read(&parts).unwrap(), std::fs::read(&whole).unwrap(), "{mode:?}");
        // Others at the same positions are other rows.
        cache.manager.seq_rm(seq, 10..).unwrap();
        append(&mut cache, seq, &[7; 590]);
        let mut row = vec![0; cache.memory.spec.bytes_per_token()];
        let error = cache.manager.read_saving(&saving, 0..1, &mut row, &cache.memory).unwrap_err();
        assert!(matches!(error, Error::Session(SessionError::Changed)), "{error:?}");
        cache.manager.free(seq).unwrap();
        let error = cache.manager.read_saving(&saving, 0..1, &mut row, &cache.memory).unwrap_err();
        assert!(matches!(error, Error::UnknownSeq { .. }), "{error:?}");
    }
}

#[test]
fn saving_is_refused() {
    let mut cache = paged(4, 64);
    let (a, b) = (create(&mut cache, &[1, 2, 3, 4, 5, 6]), create(&mut cache, &[7]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    cache.manager.seq_add(a, 3.., 2).unwrap();
    let error = cache.manager.save(&path, &cache.memory).unwrap_err();
    assert!(matches!(error, Error::UpdatePending { copies: 0, sequences: 1 }), "{error:?}");
    cache.fail();
    cache.manager.update(&mut cache.memory).unwrap_err();
    assert!(matches!(cache.manager.save(&path, &cache.memory), Err(Error::Lost { seq }) if seq == a));
    assert!(matches!(cache.manager.save_seq(&path, &cache.memory, a), Err(Error::Lost { .. })));
    let mut emptied = cache.manager.clone();
    emptied.seq_keep(b).unwrap();
    assert!(matches!(emptied.seq_rm(a, ..), Err(Error::Lost { seq }) if seq == a));
    cache.manager.save_seq(&path, &cache.memory, b).unwrap();
    let saved = std::fs::read(&path).unwrap();
    cache.manager.free(a).unwrap();

    // A memory that cannot be read: the file is as it was.
    cache.fail();
    assert!(matches!(cache.manager.save(&path, &cache.memory), Err(Error::Memory { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), saved);
    let missing = folder.path().join("missing").join("file");
    assert_eq!(cache.manager.save(&missing, &cache.memory).unwrap_err().kind(), "io");
    assert_eq!(cache.manager.load_seq(&missing, &mut cache.memory, 0).unwrap_err().kind(), "io");
}

#[test]
fn loading_is_refused() {
    let mut cache = paged(4, 64);
    create(&mut cache, &(0..10).collect::<Vec<_>>());
    create(&mut cache, &(20..40).collect::<Vec<_>>());
    let path = save(&mut cache);
    let error = cache.manager.load(&path, &mut cache.memory).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::NotEmpty { sequences: 2 })), "{error:?}");
    let error = refuses(&mut cache, &path, 2);
    assert!(matches!(error, Error::Session(SessionError::NoSequence { index: 2, sequences: 2 })), "{error:?}");

    // Too little room; 20 rows are 5 pages.
    for (mode, expected) in [(Mode::Paged { page_size: 4 }, 16), (Mode::Runs, 19), (Mode::Cells, 19)] {
        let error = refuses(&mut Managed::new(settings(mode, 19, 1)), &path, 1);
        let Error::Session(SessionError::NoRoom { need: 20, free }) = error else { panic!("{error:?}") };
        assert_eq!(free, expected);
    }
    // Room enough, but not together: cells do not mind.
    for (mode, fits) in [(Mode::Runs, false), (Mode::Cells, true)] {
        let mut holes = Managed::new(settings(mode, 24, 1));
        let seqs = [create(&mut holes, &[1; 8]), create(&mut holes, &[2; 8]), create(&mut holes, &[3; 4])];
        holes.manager.free(seqs[0]).unwrap();
        if fits {
            let loaded = holes.manager.load_seq(&path, &mut holes.memory, 0).unwrap();
            assert_eq!(holes.contents(loaded).1, cache.memory.read(&(0..10).collect::<Vec<_>>()));
            holes.manager.check().unwrap();
        } else {
            let error = refuses(&mut holes, &path, 0);
            assert!(matches!(error, Error::NoSlot { need: 10, largest: 8, free: 12 }), "{error:?}");
        }
    }
    let narrow = CacheSettings { max_pages: Some(4), ..settings(Mode::Paged { page_size: 4 }, 64, 1) };
    let error = refuses(&mut Managed::new(narrow), &path, 1);
    let Error::Session(SessionError::TooManyPages { rows: 20, page_size: 4, need: 5, max_pages: 4, .. }) = error else {
        panic!("{error:?}");
    };
}

#[test]
fn rows_of_another_cache_are_refused() {
    let mut cache = paged(4, 64);
    create(&mut cache, &(0..10).collect::<Vec<_>>());
    let path = save(&mut cache);
    let mut quantized = Managed::new(CacheSettings { layout: CacheLayout::HeadMajor, ..settings(Mode::Cells, 64, 3) });
    create(&mut quantized, &[1, 2]);
    let of_codes = save(&mut quantized);
    let like = |types| settings(Mode::Runs, 64, types);
    let sized = |geometry| CacheSettings { geometry, ..like(1) };
    let quant = Some((2, ElementType::Float16));
    for (path, settings, kind, what) in [
        (&path, sized(Geometry { num_layer: 1, ..GEOMETRY }), "dimensions", "num_layer"),
        (&path, sized(Geometry { num_heads: 1, ..GEOMETRY }), "dimensions", "num_heads"),
        (&path, sized(Geometry { head_dim: 8, ..GEOMETRY }), "dimensions", "head_dim"),
        (&path, like(0), "types", "cache"),
        (&path, like(3), "types", "cache"),
        (&path, CacheSettings { key_form: KeyForm::PreRope, ..like(1) }, "key_form", "raw"),
        (&path, CacheSettings { rope: Some(Rope::gptj(4, 1e4)), ..like(1) }, "rope", "gptj"),
        (&path, CacheSettings { rope: Some(Rope::neox(2, 1e4)), ..like(1) }, "rope", "n_rot"),
        (&path, CacheSettings { rope: Some(Rope::neox(4, 1e4 + 1e-9)), ..like(1) }, "rope", "frequency 1"),
        (&path, CacheSettings { fingerprint: "another".into(), ..like(1) }, "fingerprint", "another"),
        (&of_codes, like(2), "quantization", "quant_bit"),
        (&of_codes, like(4), "quantization", "quant_group"),
        (&of_codes, CacheSettings { quant_rotation: true, ..like(3) }, "quantization", "quant_rotation"),
        (&of_codes, CacheSettings { quant, ..like(2) }, "types", "scale"),
    ] {
        let error = refuses(&mut Managed::new(settings), path, 0);
        assert!(error.kind() == kind && error.to_string().contains(what), "expected {kind} of {what}: {error}");
    }
    // A list of frequencies is as good as a base with the same ones.
    let list = Rope::with_frequencies(RopeStyle::Neox, Rope::neox(4, 1e4).frequencies().collect());
    load(&mut Managed::new(CacheSettings { rope: Some(list), ..like(1) }), &path);
}

/// Every byte flipped, every length: no sequence and no row of one changes. What cannot be right is of a damaged file,
/// if the digest is wrong.
#[test]
fn damaged_files_change_nothing() {
    let mut cache = paged(2, 12);
    let a = create(&mut cache, &[1, 2, 3]);
    cache.manager.fork(a).unwrap();
    let path = save(&mut cache);
    let file = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut target = paged(2, 12);
    let seq = create(&mut target, &[4, 5, 6]);
    let before = target.clone();
    let mut refuses = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = target.manager.load_seq(&path, &mut target.memory, 0).unwrap_err();
        target.manager.check().unwrap();
        assert!(target.manager == before.manager && target.contents(seq) == before.contents(seq), "{error}");
        error.kind()
    };
    for i in 0..file.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut damaged = file.clone();
            damaged[i] ^= flip;
            let kind = refuses(&damaged);
            assert!(i < data || kind == "digest", "byte {i}: {kind}");
        }
        assert_eq!(refuses(&file[..i]), "truncated");
    }
    assert_eq!(refuses(&[&file[..], &[0]].concat()), "trailing");
}

/// A file whose digest is wrong was read into pages that the prefix index had: these are not found again.
#[test]
fn a_damaged_file_is_read_into_cached_pages() {
    let mut cache = paged(2, 12);
    create(&mut cache, &[1, 2, 3, 4, 5, 6]);
    let path = save(&mut cache);
    let mut file = std::fs::read(&path).unwrap();
    *file.last_mut().unwrap() ^= 1;
    std::fs::write(&path, file).unwrap();
    let (mut target, tokens) = (paged(2, 12), Vec::from_iter(11..23));
    let seq = create(&mut target, &tokens);
    let (_, rows) = target.contents(seq);
    target.manager.free(seq).unwrap();
    let error = target.manager.load_seq(&path, &mut target.memory, 0).unwrap_err();
    assert_eq!(error.kind(), "digest");
    let seq = target.manager.create();
    let found = target.append(&[Append::tokens(seq, &tokens)])[0];
    let len = found * rows.len() / tokens.len();
    assert!((1..12).contains(&found) && target.contents(seq).1[..len] == rows[..len], "{found}");
}
