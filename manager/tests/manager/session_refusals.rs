//! Sessions that are not saved or loaded: each reason, and that nothing has changed.

use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, Error, Geometry, KeyForm, MemoryError, Mode, Rope, Rotation, RowCopy, SessionError,
};
use kvcache_testing::manager::types::with_types;

use crate::session::{Cache, Path, spec};

#[test]
fn saving_is_refused() {
    let path = Path::new();
    let mut cache = Cache::paged(4, 64);
    let a = cache.create(&[1, 2, 3, 4, 5, 6]);
    let b = cache.create(&[7]);
    cache.manager.begin_step(&[Append::count(a, 1)]).unwrap().apply(&mut cache.memory).unwrap().detach();
    assert!(matches!(cache.manager.save(path.file(), &cache.memory), Err(Error::StepOpen)));
    assert!(matches!(cache.manager.load_seq(path.file(), &mut cache.memory, 0), Err(Error::StepOpen)));
    cache.manager.rollback_open_step();

    cache.manager.seq_add(a, 3.., 2).unwrap();
    let error = cache.manager.save(path.file(), &cache.memory).unwrap_err();
    assert!(matches!(error, Error::UpdatePending { copies: 0, sequences: 1 }), "{error:?}");
    let mut failing = Refusing;
    cache.manager.update(&mut failing).unwrap_err();
    assert!(matches!(cache.manager.save(path.file(), &cache.memory), Err(Error::Lost { seq }) if seq == a));
    assert!(matches!(cache.manager.save_seq(path.file(), &cache.memory, a), Err(Error::Lost { .. })));
    cache.manager.save_seq(path.file(), &cache.memory, b).unwrap();
    let saved = std::fs::read(path.file()).unwrap();
    cache.manager.free(a).unwrap();
    assert!(matches!(cache.manager.save_seq(path.file(), &cache.memory, a), Err(Error::UnknownSeq { .. })));

    // A memory that cannot be read: the file is as it was.
    assert!(matches!(cache.manager.save(path.file(), &Refusing), Err(Error::Memory { .. })));
    assert_eq!(std::fs::read(path.file()).unwrap(), saved);
    let missing = path.directory.path().join("missing").join("file");
    let error = cache.manager.save(&missing, &cache.memory).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::Io { .. })) && error.kind() == "io", "{error:?}");
    let error = cache.manager.load_seq(&missing, &mut cache.memory, 0).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::Io { .. })), "{error:?}");
}

/// A memory that does nothing.
struct Refusing;

impl CacheMemory for Refusing {
    fn copy_rows(&mut self, _: &[RowCopy]) -> Result<(), MemoryError> {
        Err("injected".into())
    }

    fn rotate_keys(&mut self, _: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        Err("injected".into())
    }

    fn read_rows(&self, _: &[usize], _: &mut [u8]) -> Result<(), MemoryError> {
        Err("injected".into())
    }

    fn write_rows(&mut self, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("injected".into())
    }
}

#[test]
fn loading_is_refused() {
    let path = Path::new();
    let mut cache = Cache::paged(4, 64);
    cache.create(&(0..10).collect::<Vec<_>>());
    cache.create(&(20..40).collect::<Vec<_>>());
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let error = cache.load(&path).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::NotEmpty { sequences: 2 })), "{error:?}");
    assert_eq!(error.kind(), "not_empty");
    let error = cache.refuses(&path, 2);
    assert!(matches!(error, Error::Session(SessionError::NoSequence { index: 2, sequences: 2 })), "{error:?}");

    // Too little room; 20 rows are 5 pages.
    let mut small = Cache::paged(4, 19);
    let error = small.refuses(&path, 1);
    assert!(matches!(error, Error::Session(SessionError::NoRoom { need: 20, free: 16 })), "{error:?}");
    for mode in [Mode::Runs, Mode::Cells] {
        let mut small = Cache::new(&spec(mode, CacheLayout::TokenMajor, 1, KeyForm::Roped, 19), 1);
        let error = small.refuses(&path, 1);
        assert!(matches!(error, Error::Session(SessionError::NoRoom { need: 20, free: 19 })), "{error:?}");
        assert!(matches!(small.load(&path).unwrap_err(), Error::Session(SessionError::NoRoom { need: 30, free: 19 })));
    }
    // Room enough, but not together: cells do not mind.
    for (mode, fits) in [(Mode::Runs, false), (Mode::Cells, true)] {
        let mut holes = Cache::new(&spec(mode, CacheLayout::TokenMajor, 1, KeyForm::Roped, 24), 1);
        let seqs = [holes.create(&[1; 8]), holes.create(&[2; 8]), holes.create(&[3; 4])];
        holes.manager.free(seqs[0]).unwrap();
        if fits {
            let loaded = holes.manager.load_seq(path.file(), &mut holes.memory, 0).unwrap();
            assert_eq!(holes.contents(loaded).1, cache.memory.read(&(0..10).collect::<Vec<_>>()));
            holes.manager.check().unwrap();
        } else {
            let error = holes.refuses(&path, 0);
            assert!(matches!(error, Error::NoSlot { need: 10, largest: 8, free: 12 }), "{error:?}");
        }
    }
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 64 };
    let narrow = CacheSpec::builder(geometry).mode(Mode::Paged { page_size: 4 }).max_pages(4);
    let narrow = narrow.rope(Rope::neox(4, 1e4)).fingerprint("model").build().unwrap();
    let error = Cache::new(&narrow, 1).refuses(&path, 1);
    let Error::Session(SessionError::TooManyPages { rows: 20, page_size: 4, need: 5, max_pages: 4, .. }) = error else {
        panic!("{error:?}");
    };
}

#[test]
fn rows_of_another_cache_are_refused() {
    let path = Path::new();
    let mut cache = Cache::paged(4, 64);
    cache.create(&(0..10).collect::<Vec<_>>());
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 64 };
    let refused = |builder: kvcache_manager::CacheSpecBuilder, types: usize| {
        Cache::new(&builder.build().unwrap(), types).refuses(&path, 0).kind()
    };
    let like = |geometry: Geometry, types: usize| {
        let builder = with_types(CacheSpec::builder(geometry), types).mode(Mode::Runs);
        builder.rope(Rope::neox(4, 1e4)).fingerprint("model")
    };
    assert_eq!(refused(like(Geometry { num_layer: 1, ..geometry }, 1), 1), "dimensions");
    assert_eq!(refused(like(Geometry { num_heads: 1, ..geometry }, 1), 1), "dimensions");
    assert_eq!(refused(like(Geometry { head_dim: 8, ..geometry }, 1), 1), "dimensions");
    assert_eq!(refused(like(geometry, 0), 0), "types");
    assert_eq!(refused(like(geometry, 3), 3), "types");
    assert_eq!(refused(like(geometry, 1).key_form(KeyForm::Raw), 1), "key_form");
    assert_eq!(refused(like(geometry, 1).rope(Rope::gptj(4, 1e4)), 1), "rope");
    assert_eq!(refused(like(geometry, 1).rope(Rope::neox(2, 1e4)), 1), "rope");
    assert_eq!(refused(like(geometry, 1).rope(Rope::neox(4, 1e4 + 1e-9)), 1), "rope");
    assert_eq!(refused(like(geometry, 1).fingerprint("another"), 1), "fingerprint");
    // The rope of a list is the same as that of a base with the same frequencies.
    let list = Rope::with_frequencies(kvcache_manager::RopeStyle::Neox, Rope::neox(4, 1e4).frequencies().collect());
    let mut same = Cache::new(&like(geometry, 1).rope(list).build().unwrap(), 1);
    same.load(&path).unwrap();

    let mut quantized = Cache::new(&spec(Mode::Cells, CacheLayout::TokenMajor, 3, KeyForm::Roped, 64), 3);
    quantized.create(&[1, 2]);
    quantized.manager.save(path.file(), &quantized.memory).unwrap();
    assert_eq!(quantized.types, 3);
    assert_eq!(Cache::new(&like(geometry, 2).build().unwrap(), 2).refuses(&path, 0).kind(), "quantization");
    assert_eq!(Cache::new(&like(geometry, 4).build().unwrap(), 4).refuses(&path, 0).kind(), "quantization");
}

/// Every byte flipped, every length: nothing changes, in the bytes of free slots either.
#[test]
fn damaged_files_change_nothing() {
    let path = Path::new();
    let mut cache = Cache::paged(2, 12);
    let a = cache.create(&[1, 2, 3]);
    cache.manager.fork(a).unwrap();
    cache.manager.save(path.file(), &cache.memory).unwrap();
    let file = std::fs::read(path.file()).unwrap();
    let mut target = Cache::paged(2, 12);
    target.create(&[4, 5, 6]);
    for i in 0..file.len() {
        for flip in [1, 0x80] {
            let mut damaged = file.clone();
            damaged[i] ^= flip;
            std::fs::write(path.file(), damaged).unwrap();
            target.refuses(&path, 0);
        }
        std::fs::write(path.file(), &file[..i]).unwrap();
        assert_eq!(target.refuses(&path, 0).kind(), "truncated");
    }
    std::fs::write(path.file(), [&file[..], &[0]].concat()).unwrap();
    assert_eq!(target.refuses(&path, 0).kind(), "trailing");
}
