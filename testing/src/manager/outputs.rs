//! A step's outputs of the operator and its masks, compared with the model's.

use std::rc::Rc;

use half::f16;
use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_manager::op::{ElementType, KeyValueCache, Outputs, Serial};
use kvcache_manager::{MaskSpec, MaskWindow, Step};
use ndarray::ArrayD;

use crate::manager::memory::Memory;
use crate::manager::rows::{RowFormat, TYPES};

#[derive(Debug, Clone, Copy)]
pub struct Query {
    pub seq: usize,
    pub pos: i64,
}

/// A row that the operator returns: the rows of sequences that it is, and its bytes. An empty cell is nobody's.
#[derive(Debug, Clone, Default)]
pub struct Key {
    pub owners: Vec<(usize, usize)>,
    pub pos: i64,
    pub bytes: Option<Rc<[u8]>>,
}

fn t1(format: &RowFormat) -> ElementType {
    let (_, _, t3, t2) = TYPES[format.types];
    if t3.is_none() && t2 == ElementType::Int8 { ElementType::Int8 } else { ElementType::Float32 }
}

/// Runs the operator layer by layer on the step's tensors, and compares what it returns. Unused entries of
/// `cachestarts` have another number for it.
pub fn run_operator(
    op: &KeyValueCache,
    step: &Step<'_>,
    memory: &mut Memory,
    format: &RowFormat,
    current: &[Rc<[f32]>],
    keys: &[Key],
) {
    let mut cachestarts: ArrayD<i64> = step.cachestarts().to_owned();
    cachestarts.mapv_inplace(|start| if start == -1 { i64::MIN } else { start });
    let mut inputs = step.layers_inputs();
    inputs.cachestarts = (&cachestarts).into();
    let t1 = t1(format);
    let (cache, scale) = (write(&mut memory.cache), memory.scale.as_mut().map(write));
    let mut layers = op.check_layers(t1, &inputs, cache, scale).unwrap();
    let len = format.num_heads * format.head_dim;
    let decoded: Vec<Option<Vec<f32>>> =
        keys.iter().map(|key| key.bytes.as_ref().map(|bytes| format.decode(bytes))).collect();
    for layer in 0..format.num_layer {
        let part = |row: &[f32], kv: usize| bytes(t1, &row[(layer * 2 + kv) * len..][..len]);
        let [current_key, current_value] = [0, 1].map(|kv| {
            let shape = vec![current.len(), format.num_heads, format.head_dim];
            let rows: Vec<u8> = current.iter().flat_map(|row| part(row, kv)).collect();
            Tensor::new(t1, shape, &rows).unwrap()
        });
        let mut got = [(); 2].map(|()| Tensor::zeros(t1, layers.output_shape().to_vec()).unwrap());
        let [key, value] = got.each_mut().map(write);
        let call = layers.layer(layer, &read(&current_key), &read(&current_value)).unwrap();
        call.run(Outputs { key, value }, &Serial).unwrap();
        for (kv, got) in got.iter().enumerate() {
            assert_eq!(got.shape()[0], keys.len());
            for (t, (row, expected)) in got.bytes().chunks(t1.byte_len(len)).zip(&decoded).enumerate() {
                let is_equal = expected.as_ref().is_none_or(|expected| part(expected, kv) == row);
                assert!(is_equal, "row {t} of layer {layer}, key/value {kv}, is another");
            }
        }
    }
}

/// Numbers in the type of the operator's inputs.
fn bytes(t1: ElementType, values: &[f32]) -> Vec<u8> {
    match t1 {
        ElementType::Int8 => values.iter().map(|&x| x as i8 as u8).collect(),
        _ => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    }
}

/// Compares the step's masks with the rule: same sequence, not later, and within the window or a sink.
pub fn check_masks(step: &Step<'_>, queries: &[Query], keys: &[Key], window: Option<usize>, sink: usize, cells: bool) {
    let slopes = [0.5_f32, 0.0625, -31.7];
    let some = keys.len() % 12;
    let cases = [
        (MaskSpec::causal(), window, None),
        (MaskSpec::causal().window(MaskWindow::None).padded(3, 40), None, None),
        (MaskSpec::causal().window(MaskWindow::Some(some)).alibi(&slopes), Some(some), Some(slopes)),
    ];
    for (spec, window, slopes) in cases {
        let shape = step.mask_shape(&spec);
        let [planes, rows, columns] = shape;
        assert_eq!(planes, slopes.map_or(1, |slopes| slopes.len()));
        assert!(rows >= queries.len() && columns >= keys.len());
        if cells && spec == MaskSpec::causal() {
            assert_eq!((rows, columns), (queries.len().next_multiple_of(32), keys.len()));
        }
        let mut mask = vec![f32::NAN; planes * rows * columns];
        step.mask_into(&spec, &mut mask).unwrap();
        let mut half = vec![f16::NAN; mask.len()];
        step.mask_into(&spec, &mut half).unwrap();
        for (at, (&got, half)) in mask.iter().zip(half).enumerate() {
            let (plane, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
            let expected = match (queries.get(row), keys.get(column)) {
                (Some(query), Some(key)) => visible(query, key, window, sink, slopes.map(|slopes| slopes[plane])),
                _ => f32::NEG_INFINITY,
            };
            // Whether a zero has a sign does not matter.
            assert!(got == expected, "{got} in plane {plane}, row {row}, column {column}, expected {expected}");
            assert!(half == f16::from_f32(expected));
        }
    }
}

fn visible(query: &Query, key: &Key, window: Option<usize>, sink: usize, slope: Option<f32>) -> f32 {
    let Some(&(_, row)) = key.owners.iter().find(|owner| owner.0 == query.seq) else {
        return f32::NEG_INFINITY;
    };
    let distance = query.pos - key.pos;
    if distance < 0 || window.is_some_and(|window| distance >= window as i64 && row >= sink) {
        f32::NEG_INFINITY
    } else {
        slope.map_or(0.0, |slope| -(distance as f32) * slope)
    }
}
