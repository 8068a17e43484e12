//! A step's masks, compared with the model's.

use half::f16;
use kvcache_manager::{MaskSpec, MaskWindow, Step};

use crate::manager::memory::Tag;

#[derive(Debug, Clone, Copy)]
pub struct Query {
    pub seq: usize,
    pub pos: i64,
}

/// A row that the operator returns: the rows of sequences that it is, and its tag. An empty cell is nobody's.
#[derive(Debug, Clone, Default)]
pub struct Key {
    pub owners: Vec<(usize, usize)>,
    pub pos: i64,
    pub tag: Option<Tag>,
}

/// Compares the step's masks with the rule: same sequence, not later, and within the window or a sink.
pub fn check_masks(step: &Step<'_>, queries: &[Query], keys: &[Key], window: Option<usize>, sink: usize, cells: bool) {
    let slopes = [0.5_f32, 0.0625, -31.7];
    let some = keys.len() % 12;
    let cases = [
        (MaskSpec::default(), window, None),
        (MaskSpec { window: MaskWindow::None, slopes: None, padded: [3, 40] }, None, None),
        (MaskSpec { window: MaskWindow::Some(some), slopes: Some(&slopes), padded: [0; 2] }, Some(some), Some(slopes)),
    ];
    for (spec, window, slopes) in cases {
        let shape = step.mask_shape(&spec);
        let [planes, rows, columns] = shape;
        assert_eq!(planes, slopes.map_or(1, |slopes| slopes.len()));
        assert!(rows >= queries.len() && columns >= keys.len());
        if cells && spec == MaskSpec::default() {
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
