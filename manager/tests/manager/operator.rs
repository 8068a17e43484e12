//! The operator on a manager's tensors, in every mode: it stores where the manager says, and loads every row of a
//! sequence in order, after edits and rotations, too.

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_manager::op::{Backend, KeyValueCache, Outputs, Serial};
use kvcache_manager::schema::ElementType::Float32;
use kvcache_manager::{Append, CacheSettings, Mode, Rope, SeqId};
use kvcache_testing::manager::managed::Managed;

use crate::golden::settings;

const NUM_LAYER: usize = 2;

/// A row: the number that all its elements follow from, and the position that its key is rotated for, from 0 on.
type Row = (usize, f32);

/// The keys or the values of a row in a layer: one head of two elements, which rotate by one radian a position.
fn elements((number, angle): Row, layer: usize, kv: usize) -> [f32; 2] {
    let (a, b) = (number as f32, (10 * layer + kv) as f32);
    let (sin, cos) = if kv == 0 { angle.sin_cos() } else { (0.0, 1.0) };
    [a * cos - b * sin, a * sin + b * cos]
}

/// Appends rows to sequences, whose rows so far are given, and compares what the operator loads.
fn step(cache: &mut Managed, appends: &mut [(SeqId, &mut Vec<Row>, usize)], next: &mut usize) {
    let op = KeyValueCache::new(cache.memory.spec.attributes()).unwrap().with_backend(Backend::Reference);
    let Managed { manager, memory } = cache;
    let mode = memory.spec.mode;
    let counts: Vec<_> = appends.iter().map(|(seq, _, n)| Append::count(*seq, *n)).collect();
    let step = manager.begin_step(&counts).unwrap().apply(memory).unwrap();
    let mut new = Vec::new();
    for &entry in step.order() {
        let (_, rows, n) = &mut appends[entry as usize];
        rows.extend((*next..*next + *n).map(|number| (number, 0.0)));
        new.extend_from_slice(&rows[rows.len() - *n..]);
        *next += *n;
    }
    let expected: Vec<Row> = step.order().iter().flat_map(|&entry| appends[entry as usize].1.clone()).collect();
    let scale = memory.scale.as_mut().map(write);
    let mut layers = op.check_layers(Float32, &step.layers_inputs(), write(&mut memory.cache), scale).unwrap();
    for layer in 0..NUM_LAYER {
        let [key, value] = [0, 1].map(|kv| {
            let bytes: Vec<u8> =
                new.iter().flat_map(|&row| elements(row, layer, kv)).flat_map(f32::to_ne_bytes).collect();
            Tensor::new(Float32, vec![new.len(), 1, 2], &bytes).unwrap()
        });
        let mut got = [(); 2].map(|()| Tensor::zeros(Float32, layers.output_shape().to_vec()).unwrap());
        let [to_key, to_value] = got.each_mut().map(write);
        let call = layers.layer(layer, &read(&key), &read(&value)).unwrap();
        call.run(Outputs { key: to_key, value: to_value }, &Serial).unwrap();
        for (kv, got) in got.iter().enumerate() {
            let numbers: Vec<f32> = got.bytes().as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            let rows = numbers.as_chunks::<2>().0;
            let is = |got: &[f32; 2], row: &Row| {
                let [a, b] = elements(*row, layer, kv);
                (got[0] - a).abs().max((got[1] - b).abs()) < 1e-4
            };
            // In cells one entry is for the new tokens, and one has all cells, of which some are empty.
            let right = match mode {
                Mode::Cells => expected.iter().all(|row| rows.iter().any(|got| is(got, row))),
                _ => rows.len() == expected.len() && rows.iter().zip(&expected).all(|(got, row)| is(got, row)),
            };
            assert!(right, "{mode:?}: {rows:?} of layer {layer}, expected {expected:?}");
        }
    }
    step.commit();
}

fn follow(mode: Mode) {
    let mut cache = Managed::new(CacheSettings {
        cache_type: Float32,
        mode,
        rope: Some(Rope::neox(2, 1e4)),
        ..settings(NUM_LAYER, 1, 2, 96)
    });
    let (a, b) = (cache.manager.create(), cache.manager.create());
    let (mut of_a, mut of_b, mut next) = (Vec::new(), Vec::new(), 1);
    step(&mut cache, &mut [(a, &mut of_a, 9), (b, &mut of_b, 4)], &mut next);
    step(&mut cache, &mut [(a, &mut of_a, 1), (b, &mut of_b, 3)], &mut next);
    let c = cache.manager.fork(a).unwrap();
    let mut of_c = of_a.clone();
    // Rows go, and those behind move to their positions.
    cache.manager.seq_rm(a, 2..5).unwrap();
    cache.manager.seq_add(a, 5.., -3).unwrap();
    of_a.drain(2..5);
    of_a[2..].iter_mut().for_each(|row| row.1 -= 3.0);
    step(&mut cache, &mut [(a, &mut of_a, 2), (c, &mut of_c, 1), (b, &mut of_b, 1)], &mut next);
    cache.update();
    step(&mut cache, &mut [(c, &mut of_c, 5), (a, &mut of_a, 1)], &mut next);
}

#[test]
fn the_operator_loads_every_row() {
    for mode in [Mode::Paged { page_size: 4 }, Mode::Paged { page_size: 1 }, Mode::Runs, Mode::Cells] {
        follow(mode);
    }
}
