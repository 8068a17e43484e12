//! InfLLM where single cases say most: positions, failures, saved sequences, refusals. Files that are not whole are
//! refused by what reads sessions: `sessions` has every byte.

use std::sync::Arc;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{
    BlockScore, CacheMemory, CacheSettings, Error, Eviction, FarPositions, Geometry, InfLlm, InfLlmConfig, KeyForm,
    Mode, Rope, Rotation, SeqId, ShiftLimit, infllm_partition,
};
use kvcache_testing::manager::memory::{Faults, Memory};
use kvcache_testing::manager::store::{Fault, Store};
use ndarray::{Array2, Array3};

const LAYERS: usize = 2;
const HEAD_DIM: usize = 4;

fn settings() -> CacheSettings {
    let geometry = Geometry { num_layer: LAYERS, num_heads: 1, head_dim: HEAD_DIM, max_t: 256 };
    CacheSettings {
        geometry,
        mode: Mode::Paged { page_size: 2 },
        cache_type: ElementType::Float32,
        ..CacheSettings::default()
    }
}

/// Two first tokens, four last ones, blocks of two by the bounds of their keys.
fn quest(topk: usize) -> InfLlmConfig {
    InfLlmConfig { score: BlockScore::PageBounds, ..InfLlmConfig::new(2, 4, 2, topk) }
}

/// The row of a token: the same numbers in keys and values of a layer.
fn row(token: usize) -> Vec<u8> {
    let numbers =
        (0..LAYERS * 2).flat_map(|part| (0..HEAD_DIM).map(move |d| ((token * 7 + part * 3 + d * 5) % 11) as f32 - 5.0));
    numbers.flat_map(f32::to_le_bytes).collect()
}

struct Cache {
    memory: Memory,
    store: Arc<Store>,
    infllm: InfLlm,
}

impl Cache {
    fn new(spec: CacheSettings, config: InfLlmConfig) -> Self {
        let (spec, store) = (spec.check().unwrap(), Arc::new(Store::default()));
        let infllm = InfLlm::new(spec.clone(), config, store.clone()).unwrap();
        Self { memory: Memory::new(&spec), store, infllm }
    }

    /// Appends rows to a sequence; gives the slots that each layer sees, and the loads.
    fn append(&mut self, seq: SeqId, rows: &[Vec<u8>]) -> Result<([Vec<usize>; LAYERS], usize), Error> {
        let step = self.infllm.begin_step(&[(seq, rows.len())], &mut self.memory)?;
        let slots = [0, 1].map(|layer| {
            let table = step.cachestarts(layer).unwrap();
            (0..step.kvstarts()[1] as usize).map(|row| table[[0, row / 2]] as usize + row % 2).collect::<Vec<_>>()
        });
        self.memory.write(&slots[0][step.start_pos()[0] as usize..], &rows.concat());
        let loads = step.loads();
        step.commit(&self.memory)?;
        self.infllm.check()?;
        Ok((slots, loads))
    }

    /// Appends tokens by their numbers, one by one, and selects nothing.
    fn fill(&mut self, seq: SeqId, tokens: std::ops::Range<usize>) -> Result<(), Error> {
        tokens.into_iter().try_for_each(|token| self.append(seq, &[row(token)]).map(drop))
    }

    fn select(&mut self, layer: usize, query: [f32; HEAD_DIM]) -> Result<(), Error> {
        self.infllm.select(layer, Array3::from_shape_fn((1, 1, HEAD_DIM), |(_, _, d)| query[d]).view())
    }
}

/// Every row is where its key is rotated to, and no position reaches `n_ctx`, however long the sequence is.
#[test]
fn far_fixed_positions_stay_below_n_ctx() -> Result<(), Error> {
    let rope = Rope::neox(HEAD_DIM, 100.0);
    for (form, n_ctx) in [(KeyForm::Roped, 16), (KeyForm::PreRope, 16), (KeyForm::Roped, 40)] {
        let config = InfLlmConfig { positions: FarPositions::FarFixed { n_ctx }, ..quest(3) };
        let mut cache = Cache::new(CacheSettings { rope: Some(rope.clone()), key_form: form, ..settings() }, config);
        let mut scratch = Memory::new(&cache.memory.spec);
        let seq = cache.infllm.create(None)?;
        let mut shifted = false;
        for token in 0..90 {
            let seen = cache.infllm.blocks(seq, 0)?;
            let step = cache.infllm.begin_step(&[(seq, 1)], &mut cache.memory)?;
            let (table, start) = (step.cachestarts(0)?.row(0).to_vec(), step.start_pos()[0] as usize);
            let slots: Vec<_> = (0..=start).map(|row| table[row / 2] as usize + row % 2).collect();
            let mut positions = Vec::new();
            step.key_positions_into(0, &mut positions)?;
            assert_eq!(step.positions(), &positions[start..]);
            assert!(positions.iter().all(|&position| position < n_ctx as i64), "{positions:?}");
            shifted |= positions[start] < token as i64;
            cache.memory.write(&slots[start..], &row(token));
            if form == KeyForm::Roped {
                cache
                    .memory
                    .rotate_keys(&[Rotation { slot: slots[start], len: 1, delta: positions[start] }], &rope)
                    .unwrap();
            }
            step.detach();
            let step = cache.infllm.open_step().expect("it was detached");
            step.commit(&cache.memory)?;
            // Tokens of first rows, blocks and the rest.
            let parts = infllm_partition(token, 2, 4, 2)?;
            let blocks = seen.iter().flat_map(|&block| [2 + 2 * block as usize, 3 + 2 * block as usize]);
            let init = if parts.blocks > 0 { 2 } else { 0 };
            let tokens: Vec<_> = (0..init).chain(blocks).chain(init + 2 * parts.blocks..=token).collect();
            assert_eq!(tokens.len(), slots.len());
            for ((&slot, &position), token) in slots.iter().zip(&positions).zip(tokens) {
                scratch.write(&[0], &cache.memory.read(&[slot]));
                if form == KeyForm::Roped {
                    scratch.rotate_keys(&[Rotation { slot: 0, len: 1, delta: -position }], &rope).unwrap();
                }
                let floats = |row: &[u8]| row.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>();
                let pairs = floats(&scratch.read(&[0])).into_iter().zip(floats(&row(token)));
                pairs.for_each(|(got, expected)| assert!((got - expected).abs() < 1e-4, "token {token} at {position}"));
            }
            cache.select(0, [1.0, 0.5, -0.25, token as f32 % 5.0 - 2.0])?;
            cache.select(1, [0.0; HEAD_DIM])?;
        }
        assert!(shifted);
    }
    Ok(())
}

/// Far rows are at the distance of the oldest local one, near ones at their own.
#[test]
fn far_constant_positions_are_no_further_than_local_ones() -> Result<(), Error> {
    let config = InfLlmConfig { positions: FarPositions::FarConstant, ..quest(20) };
    let mut cache = Cache::new(CacheSettings { key_form: KeyForm::PreRope, ..settings() }, config);
    let seq = cache.infllm.create(None)?;
    cache.append(seq, &(0..9).map(row).collect::<Vec<_>>())?;
    let step = cache.infllm.begin_step(&[(seq, 2)], &mut cache.memory)?;
    let mut positions = Vec::new();
    step.key_positions_into(1, &mut positions)?;
    assert_eq!((step.positions(), &positions[..]), (&[9, 10][..], &[6, 6, 6, 6, 6, 6, 6, 7, 8, 9, 10][..]));
    Ok(())
}

/// A step that fails has not been.
#[test]
fn failures_change_nothing() -> Result<(), Error> {
    let config = InfLlmConfig { score: BlockScore::PageBounds, ..InfLlmConfig::new(2, 4, 4, 1) };
    let mut cache = Cache::new(settings(), config);
    let seq = cache.infllm.create(None)?;
    cache.fill(seq, 0..9)?;
    // Two blocks would form; the second does not reach the store.
    cache.store.set(&[Fault::None, Fault::Fail, Fault::None]);
    assert_eq!(cache.append(seq, &(9..18).map(row).collect::<Vec<_>>()).unwrap_err().kind(), "store");
    cache.infllm.check()?;
    assert_eq!((cache.infllm.seq_len(seq)?, cache.store.num_blocks()), (9, 0));
    cache.store.set(&[]);
    // Nor are rows read.
    cache.memory.faults = Faults { fails_at: Some(cache.memory.calls.get()), ..Faults::default() };
    assert_eq!(cache.append(seq, &(9..18).map(row).collect::<Vec<_>>()).unwrap_err().kind(), "memory");
    assert_eq!((cache.infllm.seq_len(seq)?, cache.store.num_blocks()), (9, 0));
    // The store panics.
    cache.store.set(&[Fault::Panic, Fault::None, Fault::None, Fault::None]);
    let commit = || cache.append(seq, &(9..18).map(row).collect::<Vec<_>>());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).unwrap_err();
    cache.store.set(&[]);
    assert_eq!((cache.infllm.seq_len(seq)?, cache.store.num_blocks()), (9, 0));
    cache.infllm.check()?;
    let step = cache.infllm.begin_step(&[(seq, 1)], &mut cache.memory)?;
    assert_eq!(step.positions(), [9]);
    drop(step);
    // The memory panics as it copies the page that a fork shares.
    let fork = cache.infllm.fork(seq, None)?;
    cache.memory.faults = Faults { fails_at: Some(cache.memory.calls.get()), panics: true };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.append(fork, &[row(9)]))).unwrap_err();
    assert_eq!(cache.infllm.seq_len(fork)?, 9);
    cache.infllm.free(fork)?;
    cache.infllm.check()?;
    cache.append(seq, &(9..18).map(row).collect::<Vec<_>>())?;
    (0..LAYERS).try_for_each(|layer| cache.infllm.select(layer, Array3::ones((9, 1, HEAD_DIM)).view()))?;
    let wanted = cache.infllm.blocks(seq, 0)?;
    // The memory fails to write the block: it is loaded again.
    cache.memory.faults = Faults { fails_at: Some(cache.memory.calls.get()), ..Faults::default() };
    assert_eq!(cache.append(seq, &[row(18)]).unwrap_err().kind(), "memory");
    cache.infllm.check()?;
    // The store gives back other bytes, or nothing.
    let blocks = cache.store.blocks.lock().unwrap().clone();
    for (key, block) in &blocks {
        let mut bad = block.to_vec();
        bad[70] ^= 1;
        cache.store.blocks.lock().unwrap().insert(*key, bad.into());
    }
    let bad = cache.append(seq, &[row(18)]).unwrap_err();
    assert_eq!(bad.to_string(), format!("block {} of sequence {seq} is lost: the checksum differs", wanted[0]));
    cache.store.blocks.lock().unwrap().clear();
    let missing = cache.append(seq, &[row(18)]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        format!("block {} of sequence {seq} is lost: the store does not have it", wanted[0])
    );
    // Other blocks may be selected instead.
    (0..LAYERS).try_for_each(|layer| cache.infllm.select(layer, Array3::ones((9, 1, HEAD_DIM)).view()))?;
    *cache.store.blocks.lock().unwrap() = blocks;
    let (slots, loads) = cache.append(seq, &[row(18)])?;
    assert_eq!(loads, 1);
    let first = 2 + 4 * wanted[0] as usize;
    (0..4).for_each(|i| assert_eq!(cache.memory.read(&[slots[0][2 + i]]), row(first + i)));
    Ok(())
}

#[test]
fn keys_whose_rotation_fails_are_lost() -> Result<(), Error> {
    let config = InfLlmConfig { positions: FarPositions::FarFixed { n_ctx: 12 }, ..quest(30) };
    let mut cache = Cache::new(CacheSettings { rope: Some(Rope::neox(HEAD_DIM, 100.0)), ..settings() }, config);
    let (a, b) = (cache.infllm.create(None)?, cache.infllm.create(None)?);
    cache.fill(a, 0..12)?;
    cache.memory.faults = Faults { fails_at: Some(cache.memory.calls.get()), ..Faults::default() };
    // A fork's rows are copied before they are rotated.
    assert_eq!(cache.append(a, &[row(12)]).unwrap_err().kind(), "memory");
    assert_eq!(cache.append(a, &[row(12)]).unwrap_err().kind(), "lost");
    cache.infllm.check()?;
    cache.append(b, &[row(0)])?;
    cache.infllm.free(a)?;
    cache.infllm.check()?;
    assert_eq!(cache.store.num_blocks(), 0);
    Ok(())
}

#[test]
fn int4_keys_are_rotated_no_more_often_than_they_may() -> Result<(), Error> {
    let spec = CacheSettings {
        cache_type: ElementType::Int4,
        quant: Some((2, ElementType::Float32)),
        rope: Some(Rope::neox(HEAD_DIM, 100.0)),
        ..settings()
    };
    let config = InfLlmConfig { positions: FarPositions::FarFixed { n_ctx: 10 }, topk: 1, ..quest(1) };
    let mut cache = Cache::new(CacheSettings { shift_limit: ShiftLimit::Updates(2), ..spec }, config);
    let seq = cache.infllm.create(None)?;
    let tokens = (0..40).try_for_each(|_| {
        cache.infllm.begin_step(&[(seq, 1)], &mut cache.memory)?.commit(&cache.memory)?;
        (0..LAYERS).try_for_each(|layer| cache.infllm.select(layer, Array3::zeros((1, 1, HEAD_DIM)).view()))
    });
    assert!(matches!(tokens, Err(Error::ShiftLimit { shifts: 3, limit: 2 })), "{tokens:?}");
    Ok(())
}

/// Another cache, of other slots, goes on with a saved sequence, whose positions were moved back. Files of another
/// configuration are refused; what was selected among more or fewer is forgotten.
#[test]
fn a_saved_sequence_goes_on() -> Result<(), Error> {
    let fixed = |n_ctx| InfLlmConfig { positions: FarPositions::FarFixed { n_ctx }, ..quest(2) };
    let cache = |config| {
        Cache::new(
            CacheSettings { key_form: KeyForm::PreRope, rope: Some(Rope::neox(HEAD_DIM, 100.0)), ..settings() },
            config,
        )
    };
    let mut first = cache(fixed(16));
    let seq = first.infllm.create(None)?;
    for token in 0..40 {
        first.append(seq, &[row(token)])?;
        (0..LAYERS).try_for_each(|layer| first.select(layer, [1.0; HEAD_DIM]))?;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    first.infllm.save_seq(file.path(), &first.memory, seq)?;

    let mut second = cache(fixed(16));
    let other = second.infllm.create(None)?;
    second.append(other, &[row(0)])?;
    let loaded = second.infllm.load_seq(file.path(), &mut second.memory, Some(SeqId::default()))?;
    let state = |cache: &Cache, seq| Ok::<_, Error>((cache.infllm.seq_len(seq)?, cache.infllm.blocks(seq, 0)?));
    assert_eq!(state(&second, loaded)?, state(&first, seq)?);
    assert_eq!(second.store.num_blocks(), second.infllm.partition(loaded)?.blocks);
    let [before, after] = [(&mut first, seq), (&mut second, loaded)].map(|(cache, seq)| {
        let (slots, _) = cache.append(seq, &[row(40)]).unwrap();
        slots.map(|slots| cache.memory.read(&slots))
    });
    assert_eq!(before, after);
    assert_eq!(second.infllm.load_seq(file.path(), &mut second.memory, Some(loaded)).unwrap_err().kind(), "known_seq");
    // At last there is no room, and nothing is stored of what finds none.
    let (stored, refused) = loop {
        let stored = second.store.num_blocks();
        if let Err(refused) = second.infllm.load_seq(file.path(), &mut second.memory, None) {
            break (stored, refused);
        }
    };
    assert_eq!((refused.kind(), second.store.num_blocks()), ("out_of_pages", stored));
    second.infllm.check()?;
    for config in [
        fixed(18),
        InfLlmConfig { local: 6, ..fixed(18) },
        InfLlmConfig { score: BlockScore::Representatives, repr_topk: 2, ..fixed(16) },
        InfLlmConfig { per_layer: true, ..fixed(16) },
    ] {
        let mut third = cache(config);
        assert_eq!(third.infllm.load_seq(file.path(), &mut third.memory, None).unwrap_err().kind(), "metadata");
    }
    let mut third = cache(InfLlmConfig { topk: 3, max_cached: 3, ..fixed(16) });
    let seq = third.infllm.load_seq(file.path(), &mut third.memory, None)?;
    assert_eq!(third.infllm.blocks(seq, 0).unwrap_err().kind(), "not_selected");
    Ok(())
}

#[test]
fn refusals() -> Result<(), Error> {
    let kind = |spec: CacheSettings, config| {
        InfLlm::new(spec.check().unwrap(), config, Arc::new(Store::default())).unwrap_err().kind()
    };
    let far = |positions| InfLlmConfig { positions, ..quest(1) };
    for (expected, spec, config) in [
        ("not_paged", CacheSettings { mode: Mode::Runs, ..settings() }, quest(1)),
        ("multiple", settings(), InfLlmConfig { local: 5, ..quest(1) }),
        ("spec_range", settings(), quest(0)),
        ("spec_range", settings(), InfLlmConfig { score: BlockScore::None, ..quest(1) }),
        ("spec_range", settings(), InfLlmConfig { max_cached: 1, ..quest(2) }),
        ("spec_range", settings(), InfLlmConfig { repr_topk: 3, ..quest(2) }),
        ("spec_range", settings(), InfLlmConfig { num_repeat: 0, ..quest(2) }),
        ("spec_range", settings(), InfLlmConfig { block: 0, ..quest(2) }),
        ("fraction", settings(), InfLlmConfig { alpha: f32::NAN, ..quest(2) }),
        ("fraction", settings(), InfLlmConfig { eviction: Eviction::Decayed { decay: 1.5 }, ..quest(2) }),
        ("static_scales", CacheSettings { cache_type: ElementType::Float8E4M3Fn, ..settings() }, quest(2)),
        ("rotated_keys", settings(), far(FarPositions::FarConstant)),
        ("not_shiftable", settings(), far(FarPositions::FarFixed { n_ctx: 99 })),
        (
            "spec_range",
            CacheSettings { key_form: KeyForm::PreRope, ..settings() },
            far(FarPositions::FarFixed { n_ctx: 9 }),
        ),
    ] {
        assert_eq!(kind(spec, config), expected);
    }
    let config = InfLlmConfig { repr_topk: 1, ..InfLlmConfig::new(2, 4, 2, 1) };
    let mut cache = Cache::new(CacheSettings { max_pages: Some(9), ..settings() }, config);
    let seq = cache.infllm.create(None)?;
    let mass = |rows: usize, x: f32| Array2::from_elem((1, rows), x);
    let mut step = cache.infllm.begin_step(&[(seq, 3)], &mut cache.memory)?;
    for (layer, scores, expected) in [
        (2, mass(3, 0.0), "layer"),
        (0, mass(4, 0.0), "shape"),
        (0, mass(3, f32::NAN), "mass"),
        (0, mass(3, -1.0), "mass"),
    ] {
        assert_eq!(step.observe(layer, scores.view()).unwrap_err().kind(), expected);
    }
    step.observe(0, mass(3, 0.5).view())?;
    assert_eq!(step.observe(0, mass(3, 0.5).view()).unwrap_err().kind(), "observed_twice");
    step.detach();
    let queries = |n: usize| Array3::<f32>::zeros((n, 1, HEAD_DIM));
    assert_eq!(cache.infllm.select(0, queries(3).view()).unwrap_err().kind(), "step_open");
    assert_eq!(cache.infllm.fork(seq, None).unwrap_err().kind(), "step_open");
    let step = cache.infllm.open_step().expect("it was detached");
    assert_eq!(step.commit(&cache.memory).unwrap_err().kind(), "not_observed");
    assert_eq!(cache.infllm.seq_len(seq)?, 0);
    cache.infllm.select(0, queries(0).view())?; // no step was committed
    assert_eq!(cache.infllm.select(0, queries(0).view()).unwrap_err().kind(), "selected_twice");
    assert_eq!(cache.infllm.select(2, queries(0).view()).unwrap_err().kind(), "layer");
    assert_eq!(cache.infllm.select(1, queries(1).view()).unwrap_err().kind(), "shape");
    let other = cache.infllm.create(None)?;
    let mut refused =
        |appends: &[(SeqId, usize)]| cache.infllm.begin_step(appends, &mut cache.memory).unwrap_err().kind();
    assert_eq!(refused(&[(seq, 1), (seq, 1)]), "duplicate_seq");
    assert_eq!(refused(&[(seq, 0)]), "empty_append");
    assert_eq!(refused(&[(SeqId::default(), 1)]), "unknown_seq");
    assert_eq!(refused(&[(seq, usize::MAX)]), "position_overflow");
    assert_eq!(refused(&[(seq, 19)]), "too_many_pages");
    let mut cache = Cache::new(settings(), quest(1));
    let seqs = [cache.infllm.create(None)?, cache.infllm.create(Some(other))?];
    assert_eq!(cache.infllm.create(Some(other)).unwrap_err().kind(), "known_seq");
    let refused = cache.infllm.begin_step(&[(seqs[0], 200), (seqs[1], 57)], &mut cache.memory).unwrap_err();
    assert!(matches!(refused, Error::OutOfPages { need: 129, free: 128 }), "{refused}");
    cache.infllm.check()
}
