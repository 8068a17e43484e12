//! What attention is told of a step's keys, key by key: their positions, and which query sees which.

use half::f16;
use kvcache_manager::{CacheSpec, Error, MaskElement, MaskSpec, MaskWindow, Mode, Step};

use crate::source::Random;

/// About the most elements of a mask.
const ELEMENTS: usize = 1 << 15;

/// Rows of a sequence, and in the mode `cells` where they are.
#[derive(Debug, Clone)]
pub struct Keys {
    /// By row.
    pub positions: Vec<i64>,
    /// By row; nothing in other modes.
    pub cells: Vec<usize>,
}

/// Checks a step that writes the last `queries[e]` rows of `entries[e]`. In the mode `cells`, where other sequences'
/// keys are seen, too, `others` has them. Masks are of a kind that follows from the seed.
pub fn check(step: &Step<'_>, spec: &CacheSpec, entries: &[(usize, Keys)], others: &[Keys], seed: u64) {
    let in_cells = spec.mode() == Mode::Cells;
    let keys = || entries.iter().map(|(_, keys)| keys);
    // By column: the entry and the row of the key there. A cell may have several.
    let mut columns: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut positions = Vec::new();
    let new = entries.iter().flat_map(|(queries, keys)| &keys.positions[keys.positions.len() - queries..]);
    if !in_cells {
        for (e, keys) in keys().enumerate() {
            columns.extend((0..keys.positions.len()).map(|row| vec![(e, row)]));
            positions.extend_from_slice(&keys.positions);
        }
    } else if !entries.is_empty() {
        let last = keys().chain(others).flat_map(|keys| &keys.cells).max();
        let busy = last.map_or(0, |last| last + 1);
        let seen = busy.next_multiple_of(spec.pad()).max(spec.pad()).min(spec.geometry().max_t);
        assert_eq!(step.start_pos(), [0, seen as i64], "cells that are seen");
        assert_eq!(step.cachestarts()[[1]], 0);
        columns.resize(seen, Vec::new());
        for (e, keys) in keys().enumerate() {
            keys.cells.iter().enumerate().for_each(|(row, &cell)| columns[cell].push((e, row)));
        }
        let mut cells = vec![-1; seen];
        for keys in keys().chain(others) {
            keys.cells.iter().zip(&keys.positions).for_each(|(&cell, &position)| cells[cell] = position);
        }
        positions.extend(new.clone());
        positions.extend(cells);
    }
    let mut got = vec![7; 3];
    step.key_positions_into(&mut got);
    assert_eq!(got, positions, "positions of keys");

    let queries: Vec<(usize, i64)> = entries
        .iter()
        .enumerate()
        .flat_map(|(e, (queries, keys))| {
            keys.positions[keys.positions.len() - queries..].iter().map(move |&position| (e, position))
        })
        .collect();
    let rows = if in_cells { queries.len().next_multiple_of(32) } else { queries.len() };
    let mut random = Random::new(seed);
    let slopes = [0.5, 0.37, -1.0, 3e4];
    let slopes = &slopes[random.below(3)..][..random.below(3)];
    let has_slopes = random.below(3) == 0;
    let (window, width) = match random.below(5) {
        0 => (MaskWindow::None, None),
        1 | 2 => {
            let width = random.below(14);
            (MaskWindow::Some(width), Some(width))
        }
        _ => (MaskWindow::Spec, spec.window()),
    };
    let padding = if random.below(3) == 0 { [rows + random.below(4), random.below(40)] } else { [0, 0] };
    let mut mask = MaskSpec::causal().window(window).padded(padding[0], padding[1]);
    if has_slopes {
        mask = mask.alibi(slopes);
    }
    let planes = if has_slopes { slopes.len() } else { 1 };
    let shape = [planes, rows.max(padding[0]), columns.len().max(padding[1])];
    assert_eq!(step.mask_shape(&mask), shape, "the shape of a mask");
    if shape.iter().product::<usize>() > ELEMENTS {
        return;
    }
    let value = |plane: usize, row: usize, column: usize| {
        let &(e, query) = queries.get(row)?;
        let &(_, row) = columns.get(column)?.iter().find(|key| key.0 == e)?;
        let key = entries[e].1.positions[row];
        let is_near = width.is_none_or(|width| query - key < width as i64) || row < spec.sink();
        let bias = || -((query - key) as f32) * slopes[plane];
        (key <= query && is_near).then(|| if has_slopes { bias() } else { 0.0 })
    };
    let [planes, rows, width] = shape;
    let expected = (0..planes * rows * width)
        .map(|i| value(i / width / rows, i / width % rows, i % width).unwrap_or(f32::NEG_INFINITY));
    if random.below(2) == 0 {
        compare::<f32>(step, &mask, &expected.collect::<Vec<_>>());
    } else {
        compare::<f16>(step, &mask, &expected.map(f16::from_f32).collect::<Vec<_>>());
    }
}

/// Whether a step writes this mask, and none of another length.
fn compare<T: MaskElement + PartialEq>(step: &Step<'_>, spec: &MaskSpec<'_>, expected: &[T]) {
    let untouched = T::from_f32(7.0);
    let mut got = vec![untouched; expected.len() + 1];
    assert!(matches!(step.mask_into(spec, &mut got), Err(Error::MaskLength { .. })), "a mask that is too long");
    assert!(got.iter().all(|&value| value == untouched), "a mask that is refused is written");
    got.pop();
    step.mask_into(spec, &mut got).expect("a mask of the length that it needs");
    let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
    assert!(differs.is_none(), "element {differs:?} of a mask");
}
