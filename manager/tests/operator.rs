//! End to end on the direct API: the operator runs every step, and returns for each sequence the rows that were stored
//! for it, as an emulated cache of that sequence alone has them.

mod common;

use common::{Memory, TYPES, layouts, with_types};
use half::f16;
use kvcache_kernels::quantize::HeadCodec;
use kvcache_manager::op::{Backend, ElementType, KeyValueCache, Outputs, Serial, TensorMut};
use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{Append, CacheSpec, Error, Geometry, Manager, Mode, SeqId};
use ndarray::Array3;
use proptest::prelude::*;

const NUM_LAYER: usize = 2;
const NUM_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const HEADS: usize = NUM_LAYER * 2 * NUM_HEADS;

/// What happens to the sequences.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// One joins, with this many tokens.
    Join(usize),
    /// All get a token, and the chosen one this many more.
    Step {
        seq: usize,
        n: usize,
        commit: bool,
    },
    Fork(usize),
    Free(usize),
    /// The chosen one loses this many tokens.
    Truncate(usize, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => (1_usize..20).prop_map(Event::Join),
        6 => (0_usize..8, 0_usize..4, proptest::bool::weighted(0.9))
            .prop_map(|(seq, n, commit)| Event::Step { seq, n, commit }),
        2 => (0_usize..8).prop_map(Event::Fork),
        1 => (0_usize..8).prop_map(Event::Free),
        1 => (0_usize..8, 0_usize..8).prop_map(|(seq, n)| Event::Truncate(seq, n)),
    ];
    prop::collection::vec(event, 1..25)
}

/// The values of a row, that follow from the tokens up to it: by layer, key/value and head.
fn values(tokens: &[u32]) -> Vec<f32> {
    let hash = |hash: u64, &token: &u32| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut x = tokens.iter().fold(7, hash) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / 65536.0 - 128.0
    };
    (0..HEADS * HEAD_DIM).map(next).collect()
}

/// What a cache gives back for a head.
fn emulated(head: &[f32], types: usize) -> Vec<f32> {
    fn quantized<T3: kvcache_kernels::quantize::Real>(codec: HeadCodec, head: &[f32], zero: T3) -> Vec<f32> {
        let bytes = head.len() * codec.bits.code() as usize / 8;
        let (mut codes, mut scales) = (vec![0; bytes], vec![zero; head.len() / codec.group]);
        codec.encode(head, &mut codes, &mut scales);
        let mut decoded = vec![0.0_f32; head.len()];
        codec.decode(&codes, &scales, &mut decoded);
        decoded
    }
    let (bits, group, scale_type, cache_type) = TYPES[types];
    let codec = HeadCodec { bits, group };
    match (scale_type, cache_type) {
        (Some(ElementType::Float32), _) => quantized(codec, head, 0.0_f32),
        (Some(_), _) => quantized(codec, head, f16::ZERO),
        (None, ElementType::Float16) => head.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        (None, ElementType::Int8) => head.iter().map(|&x| f32::from(x as i8)).collect(),
        (None, _) => head.to_vec(),
    }
}

struct Server {
    manager: Manager,
    memory: Memory,
    op: KeyValueCache,
    types: usize,
    seqs: Vec<(SeqId, Vec<u32>)>,
    /// A row that must not reach an output.
    poison: Vec<u8>,
}

impl Server {
    fn new(layout: CacheLayout, types: usize, page_size: usize, prefix_sharing: bool) -> Self {
        let geometry = Geometry {
            num_layer: NUM_LAYER,
            num_heads: NUM_HEADS,
            head_dim: HEAD_DIM,
            max_t: 96 / page_size * page_size,
        };
        let builder = with_types(CacheSpec::builder(geometry).layout(layout), types);
        let spec = builder.mode(Mode::Paged { page_size }).prefix_sharing(prefix_sharing).build().unwrap();
        let op = KeyValueCache::new(spec.attributes()).unwrap().with_backend(Backend::Reference);
        let mut memory = Memory::new(&spec, types);
        // NaN in every float type.
        let poison = vec![0xff; spec.bytes_per_token()];
        for slot in 0..geometry.max_t {
            memory.write(&[slot], &poison);
        }
        Self { manager: Manager::new(spec).unwrap(), memory, op, types, seqs: Vec::new(), poison }
    }

    fn step(&mut self, new: &[Vec<u32>], commit: bool) -> Result<(), Error> {
        if !self.manager.spec().prefix_sharing() {
            // Slots that nobody has.
            let live: Vec<usize> = self.seqs.iter().flat_map(|seq| self.manager.slots(seq.0).unwrap()).collect();
            for slot in (0..self.manager.stats().slots).filter(|slot| !live.contains(slot)) {
                self.memory.write(&[slot], &self.poison);
            }
        }
        let appending = self.seqs.iter().zip(new).filter(|(_, new)| !new.is_empty());
        let appends: Vec<_> = appending.map(|(seq, new)| (seq, new, Append::tokens(seq.0, new))).collect();
        let step = self.manager.begin_step(&appends.iter().map(|append| append.2).collect::<Vec<_>>())?;
        let step = step.apply(&mut self.memory)?;

        let all = |b: usize| {
            let (seq, new, _) = appends[step.order()[b] as usize];
            [&seq.1[..], new].concat()
        };
        let batch = step.order().len();
        let inputs = step.layers_inputs();
        let (cache, scale) = self.memory.tensors();
        let raw_int8 = TYPES[self.types].2.is_none() && TYPES[self.types].3 == ElementType::Int8;
        let t1 = if raw_int8 { ElementType::Int8 } else { ElementType::Float32 };
        let mut layers = self.op.check_layers(t1, &inputs, cache, scale).unwrap();
        for layer in 0..NUM_LAYER {
            // Heads of the rows of all entries: those to store, and those that are expected.
            let heads = |kv: usize, row: &[f32], emulate: bool| -> Vec<f32> {
                let heads = row.chunks(HEAD_DIM).skip((layer * 2 + kv) * NUM_HEADS).take(NUM_HEADS);
                heads.flat_map(|head| if emulate { emulated(head, self.types) } else { head.to_vec() }).collect()
            };
            let rows = |kv: usize, emulate: bool| -> Array3<f32> {
                let rows: Vec<f32> = (0..batch)
                    .flat_map(|b| {
                        let tokens = all(b);
                        let start = if emulate { 0 } else { step.start_pos()[b] as usize };
                        (start..tokens.len())
                            .flat_map(|row| heads(kv, &values(&tokens[..=row]), emulate))
                            .collect::<Vec<_>>()
                    })
                    .collect();
                Array3::from_shape_vec((rows.len() / NUM_HEADS / HEAD_DIM, NUM_HEADS, HEAD_DIM), rows).unwrap()
            };
            let current = [rows(0, false), rows(1, false)];
            let expected = [rows(0, true), rows(1, true)];
            let shape = layers.output_shape();
            let got = if raw_int8 {
                let current = current.map(|rows| rows.mapv(|x| x as i8));
                let mut got = [Array3::<i8>::zeros(shape), Array3::<i8>::zeros(shape)];
                let [key, value] = got.each_mut().map(TensorMut::from);
                let call = layers.layer(layer, &(&current[0]).into(), &(&current[1]).into()).unwrap();
                call.run(Outputs { key, value }, &Serial).unwrap();
                got.map(|rows| rows.mapv(f32::from))
            } else {
                let mut got = [Array3::<f32>::zeros(shape), Array3::<f32>::zeros(shape)];
                let [key, value] = got.each_mut().map(TensorMut::from);
                let call = layers.layer(layer, &(&current[0]).into(), &(&current[1]).into()).unwrap();
                call.run(Outputs { key, value }, &Serial).unwrap();
                got
            };
            let bits = |rows: &[Array3<f32>; 2]| rows.each_ref().map(|rows| rows.mapv(f32::to_bits));
            assert!(bits(&got) == bits(&expected), "layer {layer} has other rows");
        }
        let stored: Vec<_> = appends.iter().map(|append| append.0.0).collect();
        if commit {
            step.commit();
            for ((id, tokens), new) in self.seqs.iter_mut().zip(new) {
                tokens.extend(if stored.contains(id) { &new[..] } else { &[] });
            }
        }
        Ok(())
    }

    fn run(&mut self, events: &[Event]) {
        for &event in events {
            let live = self.seqs.len();
            let mut new = vec![Vec::new(); live];
            let mut commit = true;
            match event {
                Event::Join(n) => {
                    self.seqs.push((self.manager.create(), Vec::new()));
                    new.push((0..n as u32).map(|i| i / 5).collect());
                }
                Event::Fork(seq) if live > 0 => {
                    let (id, tokens) = self.seqs[seq % live].clone();
                    self.seqs.push((self.manager.fork(id).unwrap(), tokens));
                    continue;
                }
                Event::Free(seq) if live > 0 => {
                    self.manager.free(self.seqs.remove(seq % live).0).unwrap();
                    continue;
                }
                Event::Step { seq, n, commit: committed } if live > 0 => {
                    for (i, new) in new.iter_mut().enumerate() {
                        // Forks diverge: each sequence goes on with its own number.
                        new.extend((0..if i == seq % live { n + 1 } else { 1 }).map(|_| i as u32));
                    }
                    commit = committed;
                }
                Event::Truncate(seq, n) if live > 0 => {
                    let (id, tokens) = &mut self.seqs[seq % live];
                    tokens.truncate(tokens.len().saturating_sub(n));
                    self.manager.seq_rm(*id, tokens.len() as i64..).unwrap();
                    continue;
                }
                Event::Truncate(..) | Event::Step { .. } | Event::Fork(_) | Event::Free(_) => continue,
            }
            while let Err(error) = self.step(&new, commit) {
                assert_eq!(error.kind(), "out_of_pages");
                self.manager.free(self.seqs.pop().unwrap().0).unwrap();
                new.pop();
            }
            self.manager.check().unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_operator_returns_what_was_stored(
        layout in layouts(),
        types in 0..TYPES.len(),
        page_size in proptest::sample::select(vec![1_usize, 2, 16]),
        prefix_sharing in any::<bool>(),
        events in events(),
    ) {
        Server::new(layout, types, page_size, prefix_sharing).run(&events);
    }
}

/// A fork of a partial page, both of which go on.
const FORK: [Event; 4] = [
    Event::Join(6),
    Event::Fork(0),
    Event::Step { seq: 0, n: 1, commit: true },
    Event::Step { seq: 1, n: 0, commit: true },
];

#[test]
fn forks_diverge() {
    for types in 0..TYPES.len() {
        Server::new(CacheLayout::TokenMajor, types, 4, true).run(&FORK);
    }
}

#[test]
#[should_panic(expected = "has other rows")]
fn a_memory_without_copy_on_write_is_found() {
    let mut server = Server::new(CacheLayout::TokenMajor, 0, 4, true);
    server.memory.faults.no_copies = true;
    server.run(&FORK);
}

#[test]
#[should_panic(expected = "has other rows")]
fn a_copy_without_scales_is_found() {
    let mut server = Server::new(CacheLayout::TokenMajor, 3, 4, true);
    server.memory.faults.no_scales = true;
    server.run(&FORK);
}

#[test]
fn a_memory_that_fails_leaves_all_as_it_was() {
    let mut server = Server::new(CacheLayout::TokenMajor, 3, 4, true);
    server.run(&FORK[..2]);
    let (manager, slots) =
        (server.manager.clone(), server.manager.slots(server.seqs[0].0).unwrap().collect::<Vec<_>>());
    let rows = server.memory.read(&slots);
    server.memory.faults.fails_after = Some(1);
    let error = server.step(&[vec![1], vec![2]], true).unwrap_err();
    assert_eq!(error.kind(), "memory");
    assert_eq!(error.to_string(), "the memory failed: injected");
    assert!(server.manager == manager && server.memory.read(&slots) == rows);
    server.memory.faults.fails_after = None;
    server.run(&FORK[2..]);
}
