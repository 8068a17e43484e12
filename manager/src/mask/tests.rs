//! Masks, element by element.

use std::iter::{Once, once};

use proptest::prelude::*;

use super::*;
use crate::mask_spec::{MaskSpec, MaskWindow};

/// Appends to one sequence: the positions of all its rows and, by row, its columns; the last `n` rows are queries.
#[derive(Debug, Clone)]
struct Sequence {
    positions: Vec<i64>,
    columns: Vec<usize>,
    n: usize,
}

impl Sequence {
    fn block(
        &self,
    ) -> MaskBlock<impl Iterator<Item = (i64, usize)> + Clone, impl Iterator<Item = (usize, usize)> + Clone> {
        // Runs of several rows where there are any, so that both sides are split by the other.
        let positions = self.positions.chunk_by(|a, b| a + 1 == *b);
        let columns = self.columns.chunk_by(|a, b| a + 1 == *b);
        MaskBlock {
            n: self.n,
            position: self.positions[self.positions.len() - self.n],
            key_positions: positions.map(|run| (run[0], run.len())),
            key_columns: columns.map(|run| (run[0], run.len())),
        }
    }
}

fn fill_all<T: MaskElement>(
    sequences: &[Sequence],
    shape: [usize; 3],
    spec: &MaskSpec<'_>,
    visibility: Visibility,
) -> Vec<T> {
    // Every element must be written.
    let mut mask = vec![T::from_f32(7.0); shape.iter().product()];
    let blocks = sequences.iter().map(Sequence::block);
    fill(&mut mask, shape, spec.slopes(), visibility, blocks).unwrap();
    mask
}

/// The specification, element by element.
fn naive(
    sequences: &[Sequence],
    [planes, rows, columns]: [usize; 3],
    slopes: Option<&[f32]>,
    window: Option<usize>,
    sink: usize,
) -> Vec<f32> {
    // By column: the sequences that have the key, the row and the position there.
    let mut cells = vec![Vec::new(); columns];
    let mut queries = Vec::new();
    for (seq, Sequence { positions, columns, n }) in sequences.iter().enumerate() {
        for (row, (&position, &column)) in positions.iter().zip(columns).enumerate() {
            cells[column].push((seq, row, position));
        }
        queries.extend(positions[positions.len() - n..].iter().map(|&position| (seq, position)));
    }
    let value = |plane: usize, row: usize, column: usize| {
        let Some(&(seq, query)) = queries.get(row) else { return f32::NEG_INFINITY };
        let Some(&(_, row, key)) = cells[column].iter().find(|cell| cell.0 == seq) else {
            return f32::NEG_INFINITY;
        };
        let near = window.is_none_or(|window| query - key < window as i64) || row < sink;
        match slopes {
            _ if key > query || !near => f32::NEG_INFINITY,
            None => 0.0,
            Some(slopes) => -(query.abs_diff(key) as f32) * slopes[plane],
        }
    };
    (0..planes * rows * columns).map(|i| value(i / columns / rows, i / columns % rows, i % columns)).collect()
}

/// A sequence's positions, and how many of them are queries.
fn sequence() -> impl Strategy<Value = (Vec<i64>, usize)> {
    let step = prop_oneof![1 => Just(0_i64), 8 => Just(1), 1 => 2_i64..5];
    (proptest::collection::vec(step, 0..24), 0_i64..3, 0_i64..4, 1_usize..6).prop_map(|(steps, first, gap, n)| {
        let mut positions = vec![first];
        positions.extend(steps.iter().scan(first, |position, step| {
            *position += step;
            Some(*position)
        }));
        let next = positions[positions.len() - 1] + 1 + gap;
        positions.extend(next..next + n as i64);
        (positions, n)
    })
}

/// Sequences with the columns of paged caches and runs, or of cells in any order, where the second may have the
/// first one's leading cells.
fn sequences() -> impl Strategy<Value = (Vec<Sequence>, usize)> {
    let lists = proptest::collection::vec(sequence(), 0..5);
    (lists, any::<bool>(), 1_usize..9, 0_usize..20, any::<prop::sample::Index>()).prop_flat_map(
        |(lists, in_cells, chunk, free, shared)| {
            let columns = lists.iter().map(|(positions, _)| positions.len()).sum::<usize>();
            let cells: Vec<_> = (0..columns + if in_cells { free } else { 0 }).collect();
            // Chunks of neighboring cells in any order.
            let chunks: Vec<_> = cells.chunks(chunk).map(<[usize]>::to_vec).collect();
            let order = if in_cells { Just(chunks).prop_shuffle().boxed() } else { Just(chunks).boxed() };
            order.prop_map(move |chunks| {
                let order: Vec<_> = chunks.concat();
                let mut order = order.iter().copied();
                let mut sequences: Vec<Sequence> = Vec::new();
                for (positions, n) in &lists {
                    let columns = order.by_ref().take(positions.len()).collect();
                    let mut sequence = Sequence { positions: positions.clone(), columns, n: *n };
                    if let ([first], true) = (&sequences[..], in_cells) {
                        // Rows before both sequences' queries.
                        let rows = |sequence: &Sequence| sequence.positions.len() - sequence.n;
                        let shared = shared.index(rows(first).min(rows(&sequence)) + 1);
                        sequence.columns[..shared].copy_from_slice(&first.columns[..shared]);
                    }
                    sequences.push(sequence);
                }
                (sequences, columns + if in_cells { free } else { 0 })
            })
        },
    )
}

proptest! {
    #[test]
    fn agrees_with_the_specification_element_by_element(
        (sequences, columns) in sequences(),
        padding in (0_usize..8, 0_usize..8),
        spec_window in proptest::option::of(1_usize..12),
        window in prop_oneof![Just(MaskWindow::Spec), Just(MaskWindow::None), (0_usize..12).prop_map(MaskWindow::Some)],
        sink in 0_usize..6,
        slopes in proptest::option::of(proptest::collection::vec(-1e3_f32..1e3, 0..4)),
    ) {
        let rows = sequences.iter().map(|sequence| sequence.n).sum();
        let mut spec = MaskSpec::causal().window(window).padded(rows + padding.0, columns + padding.1);
        if let Some(slopes) = &slopes {
            spec = spec.alibi(slopes);
        }
        let shape = spec.shape(rows, columns);
        let planes = slopes.as_ref().map_or(1, Vec::len);
        prop_assert_eq!(shape, [planes, rows + padding.0, columns + padding.1]);

        let effective = match window {
            MaskWindow::Spec => spec_window,
            MaskWindow::None => None,
            MaskWindow::Some(window) => Some(window),
        };
        let expected = naive(&sequences, shape, slopes.as_deref(), effective, sink);
        let visibility = spec.visibility(spec_window, sink);
        let got = fill_all::<f32>(&sequences, shape, &spec, visibility);
        prop_assert_eq!(&got, &expected);
        let rounded: Vec<_> = expected.iter().map(|&value| f16::from_f32(value)).collect();
        prop_assert_eq!(fill_all::<f16>(&sequences, shape, &spec, visibility), rounded);
    }
}

#[test]
fn a_mask_of_another_length_is_refused() {
    let spec = MaskSpec::causal();
    let fill = |len: usize, shape| {
        let mut mask = vec![7.0_f32; len];
        let blocks = std::iter::empty::<MaskBlock<Once<_>, Once<_>>>();
        let result = fill(&mut mask, shape, spec.slopes(), spec.visibility(None, 0), blocks);
        assert!(result.is_ok() || mask.iter().all(|&value| value == 7.0));
        result
    };
    for got in [5, 7] {
        let refused = fill(got, [1, 2, 3]);
        let Err(error) = refused else { panic!("a mask of {got} elements was filled") };
        assert_eq!(error.kind(), "mask_length");
        assert_eq!(error.to_string(), format!("the mask has {got} elements, expected 6 for [1, 2, 3]"));
    }
    let refused = fill(0, [1, usize::MAX, 3]);
    assert!(matches!(refused, Err(Error::MaskLength { expected: usize::MAX, got: 0, .. })));
    for shape in [[1, 0, 0], [0, 2, 3], [1, 0, 3], [1, 2, 0]] {
        assert!(fill(0, shape).is_ok());
    }
}

#[test]
fn distances_at_the_largest_position() {
    let slopes = [0.5_f32, 1e-5];
    let spec = MaskSpec::causal().alibi(&slopes);
    let last = crate::positions::MAX_POSITION;
    let key_positions = [(0, 1), (last, 1)].into_iter();
    let block = MaskBlock { n: 1, position: last, key_positions, key_columns: once((0, 2)) };
    let (mut wide, mut narrow) = ([7.0_f32; 4], [f16::ONE; 4]);
    let all = [spec.visibility(Some(usize::MAX), 0), spec.visibility(None, usize::MAX)];
    fill(&mut wide, [2, 1, 2], spec.slopes(), all[0], [block.clone()]).unwrap();
    fill(&mut narrow, [2, 1, 2], spec.slopes(), all[1], [block]).unwrap();
    let far = -(last as f32);
    assert_eq!(wide.map(f32::to_bits), [far * 0.5, 0.0, far * 1e-5, 0.0].map(f32::to_bits));
    assert_eq!(narrow, wide.map(f16::from_f32));
}
