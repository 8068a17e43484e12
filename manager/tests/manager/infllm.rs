//! InfLLM, Quest and StreamingLLM against a naive model, which keeps every row of every sequence.

use std::sync::Arc;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{
    BlockScore, CacheSettings, CacheSpec, Error, Eviction, Geometry, InfLlm, InfLlmConfig, InfLlmStep, Mode, SeqId,
    infllm_partition,
};
use kvcache_testing::manager::memory::Memory;
use kvcache_testing::manager::store::Store;
use ndarray::{Array2, Array3};
use proptest::prelude::*;

const LAYERS: usize = 2;
const HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const PAGE: usize = 2;
const SEQUENCES: usize = 4;
/// Numbers of tokens by which sums and means are exact.
const STEPS: [usize; 4] = [1, 1, 2, 8];

/// A small number for each seed.
fn number(seed: u64) -> f32 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as f32 - 3.0
}

fn spec(int8: bool) -> CacheSpec {
    let geometry = Geometry { num_layer: LAYERS, num_heads: HEADS, head_dim: HEAD_DIM, max_t: 1024 };
    let settings = CacheSettings { geometry, mode: Mode::Paged { page_size: PAGE }, ..CacheSettings::default() };
    let settings = if int8 {
        CacheSettings { cache_type: ElementType::Int8, quant: Some((2, ElementType::Float32)), ..settings }
    } else {
        CacheSettings { cache_type: ElementType::Float32, ..settings }
    };
    settings.check().unwrap()
}

/// A canonical row.
fn row(spec: &CacheSpec, seed: u64) -> Vec<u8> {
    let len = LAYERS * 2 * HEADS * HEAD_DIM;
    let numbers = (0..len as u64).map(|i| number(seed * 1000 + i));
    if spec.quant.is_some() {
        let scales = [0.5_f32.to_le_bytes(); LAYERS * 2 * HEADS * HEAD_DIM / 2];
        numbers.map(|x| x as i8 as u8).chain(scales.into_iter().flatten()).collect()
    } else {
        numbers.flat_map(f32::to_le_bytes).collect()
    }
}

/// A sequence, whole.
#[derive(Debug, Clone, Default)]
struct Naive {
    rows: Vec<Vec<u8>>,
    /// By token, layer and head of queries.
    mass: Vec<[Vec<f32>; LAYERS]>,
    /// By layer: of each block what queries are compared with, by head of queries.
    index: [Vec<Vec<[Vec<f32>; 2]>>; LAYERS],
    scores: [Vec<f32>; LAYERS],
    /// By selection.
    chosen: Vec<Option<Vec<u32>>>,
}

impl Naive {
    fn blocks(&self) -> usize {
        self.index[0].len()
    }

    fn wanted(&self, config: &InfLlmConfig, group: usize) -> Option<Vec<u32>> {
        let all = self.blocks() <= config.topk;
        if all { Some((0..self.blocks() as u32).collect()) } else { self.chosen[group].clone() }
    }

    /// The tokens that attention sees in a selection, of which `n` are new.
    fn visible(&self, config: &InfLlmConfig, group: usize, n: usize) -> Vec<usize> {
        let InfLlmConfig { init, local, block, .. } = *config;
        let parts = infllm_partition(self.rows.len(), init, local, block).unwrap();
        let wanted = self.wanted(config, group).unwrap();
        let blocks = wanted.iter().flat_map(|&b| init + b as usize * block..init + (b as usize + 1) * block);
        let first = (self.rows.len() + n).min(if parts.blocks > 0 { init } else { 0 });
        (0..first).chain(blocks).chain(first + parts.blocks * block..self.rows.len() + n).collect()
    }

    /// Forms the blocks that the partition has.
    fn form(&mut self, spec: &CacheSpec, config: &InfLlmConfig) {
        let InfLlmConfig { init, local, block, num_repeat, .. } = *config;
        let parts = infllm_partition(self.rows.len(), init, local, block).unwrap();
        if config.score == BlockScore::None {
            return;
        }
        for b in self.blocks()..parts.blocks {
            let tokens: Vec<usize> = (init + b * block..init + (b + 1) * block).collect();
            for layer in 0..LAYERS {
                let key = |token: usize, h: usize| {
                    let mut keys = [0.0; HEADS * HEAD_DIM];
                    spec.rows().keys(layer, &self.rows[token], &mut keys).unwrap();
                    keys[h / num_repeat * HEAD_DIM..][..HEAD_DIM].to_vec()
                };
                let of_head = |h: usize| -> [Vec<f32>; 2] {
                    let over = |tokens: &[usize], f: &dyn Fn(f32, f32) -> f32| {
                        let keys = tokens.iter().map(|&token| key(token, h));
                        keys.reduce(|a, b| a.iter().zip(b).map(|(&a, b)| f(a, b)).collect()).unwrap()
                    };
                    if config.score == BlockScore::PageBounds {
                        return [over(&tokens, &f32::min), over(&tokens, &f32::max)];
                    }
                    let mut best = tokens.clone();
                    best.sort_by(|&a, &b| self.mass[b][layer][h].total_cmp(&self.mass[a][layer][h]));
                    best.truncate(config.repr_topk);
                    let mean: Vec<_> =
                        over(&best, &|a, b| a + b).iter().map(|sum| sum / config.repr_topk as f32).collect();
                    [mean.clone(), mean]
                };
                let block = (0..HEADS * num_repeat).map(of_head).collect();
                self.index[layer].push(block);
            }
        }
    }

    fn select(
        &mut self,
        config: &InfLlmConfig,
        layer: usize,
        selected: &[usize],
        queries: &Array3<f32>,
        of: [usize; 2],
    ) {
        if self.blocks() == 0 {
            return;
        }
        let n = of[1] - of[0];
        let heads = HEADS * config.num_repeat;
        for (b, block) in self.index[layer].iter().enumerate() {
            let of_head = |h: usize| -> f32 {
                let term = |d: usize| {
                    let q = (of[0]..of[1]).map(|t| queries[[t, h, d]]).sum::<f32>() / n as f32;
                    let [a, b] = &block[h];
                    (q * a[d]).max(q * b[d])
                };
                (0..HEAD_DIM).map(term).sum()
            };
            let new = (0..heads).map(of_head).sum::<f32>() / heads as f32;
            match self.scores[layer].get_mut(b) {
                Some(score) => *score = config.alpha * new + (1.0 - config.alpha) * *score,
                None => self.scores[layer].push(new),
            }
        }
        let layers = if config.per_layer { &[layer][..] } else { selected };
        let mean = |&b: &usize| layers.iter().map(|&l| self.scores[l][b]).sum::<f32>() / layers.len() as f32;
        let mut best: Vec<usize> = (0..self.blocks()).collect();
        best.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        best.truncate(config.topk);
        best.sort_unstable();
        let best: Vec<_> = best.into_iter().map(|b| b as u32).collect();
        self.chosen[if config.per_layer { layer } else { 0 }] = Some(best).filter(|best| best.len() == config.topk);
    }
}

struct Machine {
    config: InfLlmConfig,
    memory: Memory,
    store: Arc<Store>,
    infllm: InfLlm,
    naive: Vec<(SeqId, Naive)>,
    seed: u64,
}

impl Machine {
    fn new(config: InfLlmConfig, int8: bool) -> Self {
        let (spec, store) = (spec(int8), Arc::new(Store::default()));
        let infllm = InfLlm::new(spec.clone(), config.clone(), store.clone()).unwrap();
        Self { config, memory: Memory::new(&spec), store, infllm, naive: Vec::new(), seed: 0 }
    }

    fn groups(&self) -> usize {
        if self.config.per_layer { LAYERS } else { 1 }
    }

    fn numbers(&mut self) -> impl FnMut() -> f32 + use<> {
        self.seed += 1_000_000;
        let mut seed = self.seed;
        move || {
            seed += 1;
            number(seed)
        }
    }

    /// Runs a step, and selects by its queries if it is committed.
    fn step(&mut self, appends: &[(usize, usize)], commit: bool, select: usize) -> Result<(), Error> {
        let counts: Vec<_> = appends.iter().map(|&(i, n)| (self.naive[i].0, n)).collect();
        let gets = self.store.gets();
        let (mut numbers, groups) = (self.numbers(), self.groups());
        let step = self.infllm.begin_step(&counts, &mut self.memory)?;
        assert_eq!(step.loads(), self.store.gets() - gets);
        let entries: Vec<_> = step.order().iter().map(|&append| appends[append as usize]).collect();
        let mut rows = Vec::new();
        for (e, &(i, n)) in entries.iter().enumerate() {
            let naive = &self.naive[i].1;
            rows.push((0..n).map(|_| row(&self.memory.spec, (numbers() + 3.0) as u64)).collect::<Vec<_>>());
            let (start, end) = (step.start_pos()[e] as usize, (step.kvstarts()[e + 1] - step.kvstarts()[e]) as usize);
            for layer in 0..LAYERS {
                let table = step.cachestarts(layer)?.row(e).to_vec();
                let slots: Vec<_> = (0..end).map(|row| table[row / PAGE] as usize + row % PAGE).collect();
                self.memory.write(&slots[start..], &rows[e].concat());
                // Rows are those that attention sees, in order, in this layer.
                let visible = naive.visible(&self.config, layer % groups, n);
                assert_eq!(visible.len(), end);
                let parts = self.memory.spec.rows().layer(layer).unwrap().in_row();
                for (&slot, token) in slots.iter().zip(visible) {
                    let expected = naive.rows.get(token).unwrap_or_else(|| &rows[e][token - naive.rows.len()]);
                    let got = self.memory.read(&[slot]);
                    parts
                        .iter()
                        .for_each(|part| assert_eq!(got[part.clone()], expected[part.clone()], "token {token}"));
                }
            }
        }
        let heads = HEADS * self.config.num_repeat;
        let masses = observe(step, heads, || (numbers() + 3.0) / 4.0)?;
        let keys: usize = masses[0].ncols();
        self.infllm.check()?;
        let step = self.infllm.open_step().unwrap();
        let starts: Vec<_> = step.seqstarts().iter().map(|&start| start as usize).collect();
        if !commit {
            step.rollback();
            return self.infllm.check();
        }
        step.commit(&self.memory)?;
        let mut first = 0;
        for ((i, n), rows) in entries.iter().zip(rows) {
            let groups: Vec<_> =
                (0..self.groups()).map(|group| self.naive[*i].1.visible(&self.config, group, *n)).collect();
            let naive = &mut self.naive[*i].1;
            naive.rows.extend(rows);
            naive.mass.resize(naive.rows.len(), std::array::from_fn(|_| vec![0.0; heads]));
            for (layer, mass) in masses.iter().enumerate() {
                for (at, &token) in groups[layer % groups.len()].iter().enumerate() {
                    (0..heads).for_each(|h| naive.mass[token][layer][h] += mass[[h, first + at]]);
                }
            }
            first += groups[0].len();
            naive.form(&self.memory.spec, &self.config);
        }
        assert_eq!(first, keys);
        let mut selected = Vec::new();
        for layer in 0..select {
            let queries = Array3::from_shape_simple_fn((starts[entries.len()], heads, HEAD_DIM), &mut numbers);
            self.infllm.select(layer, queries.view())?;
            selected.push(layer);
            for (e, &(i, _)) in entries.iter().enumerate() {
                self.naive[i].1.select(&self.config, layer, &selected, &queries, [starts[e], starts[e + 1]]);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        self.infllm.check()?;
        for (seq, naive) in &self.naive {
            let InfLlmConfig { init, local, block, .. } = self.config;
            let parts = infllm_partition(naive.rows.len(), init, local, block)?;
            assert_eq!((self.infllm.partition(*seq)?, self.infllm.seq_len(*seq)?), (parts, naive.rows.len()));
            assert!(self.infllm.num_pages(*seq)? <= self.config.max_pages(PAGE, 8)?);
            for layer in 0..LAYERS {
                let wanted = naive.wanted(&self.config, layer % self.groups());
                assert_eq!(self.infllm.blocks(*seq, layer).ok(), wanted);
            }
        }
        Ok(())
    }
}

/// Observes random masses in every layer, and leaves the step open.
fn observe(mut step: InfLlmStep<'_>, heads: usize, mut number: impl FnMut() -> f32) -> Result<Vec<Array2<f32>>, Error> {
    let keys = step.kvstarts().last().map_or(0, |&keys| keys as usize);
    let masses: Vec<_> = (0..LAYERS).map(|_| Array2::from_shape_simple_fn((heads, keys), &mut number)).collect();
    for (layer, mass) in masses.iter().enumerate() {
        step.observe(layer, mass.view())?;
    }
    step.detach();
    Ok(masses)
}

#[derive(Debug, Clone)]
enum Op {
    Create,
    Fork(usize),
    Free(usize),
    /// Appends so many tokens to sequences; whether it is committed, and how many layers select then.
    Step(Vec<(usize, usize)>, bool, usize),
    /// Adds a sequence from a file that another one is saved in.
    Load(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let n = prop::sample::select(&STEPS[..]);
    let appends = prop::collection::btree_map(0..SEQUENCES, n, 0..=SEQUENCES).prop_map(|map| map.into_iter().collect());
    prop_oneof![
        2 => Just(Op::Create),
        1 => (0..SEQUENCES).prop_map(Op::Fork),
        1 => (0..SEQUENCES).prop_map(Op::Free),
        1 => (0..SEQUENCES).prop_map(Op::Load),
        12 => (appends.prop_shuffle(), prop::bool::weighted(0.85), prop::sample::select(&[0, 1, 2, 2, 2, 2][..]))
            .prop_map(|(appends, commit, select)| Op::Step(appends, commit, select)),
    ]
}

fn config() -> impl Strategy<Value = InfLlmConfig> {
    let score = prop::sample::select(&[BlockScore::Representatives, BlockScore::PageBounds, BlockScore::None][..]);
    let eviction = prop::sample::select(&[Eviction::Lru, Eviction::Decayed { decay: 0.5 }][..]);
    let sizes = (0_usize..3, 1_usize..3, 1_usize..3, 1_usize..4, 0_usize..3, 0_u32..2);
    (sizes, score, eviction, any::<[bool; 3]>()).prop_map(
        |((init, local, block, topk, spare, repr), score, eviction, [per_layer, repeat, smooth])| {
            let topk = if score == BlockScore::None { 0 } else { topk };
            InfLlmConfig {
                repr_topk: 2_usize.pow(repr),
                max_cached: topk + spare,
                alpha: if smooth { 0.5 } else { 1.0 },
                score,
                eviction,
                per_layer,
                num_repeat: 1 + usize::from(repeat),
                ..InfLlmConfig::new(init * PAGE, local * PAGE, block * PAGE, topk)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn attention_sees_the_rows_of_a_naive_model(
        config in config(),
        int8: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut machine = Machine::new(config, int8);
        for op in ops {
            match op {
                Op::Create if machine.naive.len() < SEQUENCES => {
                    let naive = Naive { chosen: vec![None; machine.groups()], ..Naive::default() };
                    machine.naive.push((machine.infllm.create(None)?, naive));
                }
                Op::Fork(i) if i < machine.naive.len() && machine.naive.len() < SEQUENCES => {
                    let (src, naive) = machine.naive[i].clone();
                    machine.naive.push((machine.infllm.fork(src, None)?, naive));
                }
                Op::Load(i) if i < machine.naive.len() && machine.naive.len() < SEQUENCES => {
                    let (src, naive) = machine.naive[i].clone();
                    let file = tempfile::NamedTempFile::new().unwrap();
                    machine.infllm.save_seq(file.path(), &machine.memory, src)?;
                    let seq = machine.infllm.load_seq(file.path(), &mut machine.memory, None)?;
                    machine.naive.push((seq, naive));
                }
                Op::Free(i) if i < machine.naive.len() => machine.infllm.free(machine.naive.remove(i).0)?,
                Op::Step(appends, commit, select) => {
                    let appends: Vec<_> = appends.into_iter().filter(|(i, _)| *i < machine.naive.len()).collect();
                    let groups = 0..machine.groups();
                    let ready = |i: usize| {
                        groups.clone().all(|group| machine.naive[i].1.wanted(&machine.config, group).is_some())
                    };
                    let counts: Vec<_> = appends.iter().map(|&(i, n)| (machine.naive[i].0, n)).collect();
                    if appends.iter().all(|&(i, _)| ready(i)) {
                        machine.step(&appends, commit, select)?;
                        // What was loaded is resident.
                        if !commit {
                            prop_assert_eq!(machine.infllm.begin_step(&counts, &mut machine.memory)?.loads(), 0);
                        }
                    } else {
                        let refused = machine.infllm.begin_step(&counts, &mut machine.memory).unwrap_err();
                        prop_assert_eq!(refused.kind(), "not_selected");
                    }
                }
                Op::Create | Op::Fork(_) | Op::Free(_) | Op::Load(_) => {}
            }
            machine.check()?;
        }
        // A store has the blocks of sequences, and no others.
        for (seq, _) in std::mem::take(&mut machine.naive) {
            machine.infllm.free(seq)?;
        }
        prop_assert_eq!(machine.store.num_blocks(), 0);
        machine.infllm.check()?;
    }
}
