//! Sessions that are not saved or loaded: each reason, and that nothing has changed.

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{Append, CacheSpec, CacheSpecBuilder, Error, Geometry, KeyForm, Mode, Rope, SessionError};
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
    cache.memory.faults.fails_at = Some(cache.memory.calls.get());
    cache.manager.update(&mut cache.memory).unwrap_err();
    assert!(matches!(cache.manager.save(path.file(), &cache.memory), Err(Error::Lost { seq }) if seq == a));
    assert!(matches!(cache.manager.save_seq(path.file(), &cache.memory, a), Err(Error::Lost { .. })));
    cache.manager.save_seq(path.file(), &cache.memory, b).unwrap();
    let saved = std::fs::read(path.file()).unwrap();
    cache.manager.free(a).unwrap();
    assert!(matches!(cache.manager.save_seq(path.file(), &cache.memory, a), Err(Error::UnknownSeq { .. })));

    // A memory that cannot be read: the file is as it was.
    cache.memory.faults.fails_at = Some(cache.memory.calls.get());
    assert!(matches!(cache.manager.save(path.file(), &cache.memory), Err(Error::Memory { .. })));
    assert_eq!(std::fs::read(path.file()).unwrap(), saved);
    let missing = path.directory.path().join("missing").join("file");
    let error = cache.manager.save(&missing, &cache.memory).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::Io { .. })) && error.kind() == "io", "{error:?}");
    let error = cache.manager.load_seq(&missing, &mut cache.memory, 0).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::Io { .. })), "{error:?}");
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
        let mut small = Cache::new(&spec(mode, CacheLayout::TokenMajor, 1, KeyForm::Roped, 19));
        let error = small.refuses(&path, 1);
        assert!(matches!(error, Error::Session(SessionError::NoRoom { need: 20, free: 19 })), "{error:?}");
        assert!(matches!(small.load(&path).unwrap_err(), Error::Session(SessionError::NoRoom { need: 30, free: 19 })));
    }
    // Room enough, but not together: cells do not mind.
    for (mode, fits) in [(Mode::Runs, false), (Mode::Cells, true)] {
        let mut holes = Cache::new(&spec(mode, CacheLayout::TokenMajor, 1, KeyForm::Roped, 24));
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
    let error = Cache::new(&narrow).refuses(&path, 1);
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
    let like = |geometry: Geometry, types: usize| {
        let builder = with_types(CacheSpec::builder(geometry), types).mode(Mode::Runs);
        builder.rope(Rope::neox(4, 1e4)).fingerprint("model")
    };
    let refused = |builder: CacheSpecBuilder, kind: &str, what: &str| {
        let error = Cache::new(&builder.build().unwrap()).refuses(&path, 0);
        assert!(error.kind() == kind && error.to_string().contains(what), "expected {kind} of {what}: {error}");
    };
    let another = Rope::neox(4, 1e4 + 1e-9);
    for (builder, kind, what) in [
        (like(Geometry { num_layer: 1, ..geometry }, 1), "dimensions", "num_layer"),
        (like(Geometry { num_heads: 1, ..geometry }, 1), "dimensions", "num_heads"),
        (like(Geometry { head_dim: 8, ..geometry }, 1), "dimensions", "head_dim"),
        (like(geometry, 0), "types", "cache"),
        (like(geometry, 3), "types", "cache"),
        (like(geometry, 1).key_form(KeyForm::Raw), "key_form", "raw"),
        (like(geometry, 1).rope(Rope::gptj(4, 1e4)), "rope", "gptj"),
        (like(geometry, 1).rope(Rope::neox(2, 1e4)), "rope", "n_rot"),
        (like(geometry, 1).rope(another), "rope", "frequency 1"),
        (like(geometry, 1).fingerprint("another"), "fingerprint", "another"),
    ] {
        refused(builder, kind, what);
    }
    // The rope of a list is the same as that of a base with the same frequencies.
    let list = Rope::with_frequencies(kvcache_manager::RopeStyle::Neox, Rope::neox(4, 1e4).frequencies().collect());
    let mut same = Cache::new(&like(geometry, 1).rope(list).build().unwrap());
    same.load(&path).unwrap();

    let mut quantized = Cache::new(&spec(Mode::Cells, CacheLayout::TokenMajor, 3, KeyForm::Roped, 64));
    quantized.create(&[1, 2]);
    quantized.manager.save(path.file(), &quantized.memory).unwrap();
    for (builder, kind, what) in [
        (like(geometry, 2), "quantization", "quant_bit"),
        (like(geometry, 4), "quantization", "quant_group"),
        (like(geometry, 2).quantized(QuantBit::Eight, 2, ElementType::Float16), "types", "scale"),
    ] {
        refused(builder, kind, what);
    }
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
        for flip in [0x01, 0x20, 0x80, 0xff] {
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
