//! Attention masks: which keys each query of a step sees.

use kvcache_simd::Float as MaskElement;

use crate::error::Error;

/// What a mask hides beside other sequences and later positions, the values of visible keys, and the least size.
///
/// A key is visible to a query of the same sequence whose position is not smaller. Visible keys are 0, or a bias where
/// there are `slopes`; all else is -inf, rows and columns of padding included. Ignore the rows of padding: the softmax
/// of -inf alone is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MaskSpec<'a> {
    /// The window: by default the window of the cache's specification.
    pub window: MaskWindow,
    /// Biases by distance (ALiBi): a plane for each slope, usually one per head, in which a visible key is
    /// -|pos_q - pos_k| * slope, computed in float32 and rounded to the mask's type.
    pub slopes: Option<&'a [f32]>,
    /// The least number of rows and of columns.
    pub padded: [usize; 2],
}

/// The window of a mask: a query at position q sees keys at positions above q - W, and the sequence's first `sink`
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskWindow {
    /// The window of the cache's specification, if it has one.
    #[default]
    Spec,
    /// No window: all earlier positions.
    None,
    /// This W, with the `sink` of the cache's specification.
    Some(usize),
}

impl MaskSpec<'_> {
    /// The shape (planes, rows, columns) of a mask that needs that many rows and columns.
    pub(super) fn shape(&self, rows: usize, columns: usize) -> [usize; 3] {
        let planes = self.slopes.map_or(1, <[f32]>::len);
        [planes, rows.max(self.padded[0]), columns.max(self.padded[1])]
    }

    /// What the mask shows, with the window and the sinks of the cache's specification.
    pub(super) fn visibility(&self, spec_window: Option<usize>, sink: usize) -> Visibility {
        let window = match self.window {
            MaskWindow::Spec => spec_window,
            MaskWindow::None => None,
            MaskWindow::Some(window) => Some(window),
        };
        let window = window.map_or(i64::MAX, |window| i64::try_from(window).unwrap_or(i64::MAX));
        Visibility { window, sink }
    }
}

/// The keys of its own sequence that a query sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visibility {
    /// Smaller than this is the distance of a visible key, unless it is a sink.
    pub(crate) window: i64,
    /// The number of the sequence's first rows that no window hides.
    pub(crate) sink: usize,
}

/// Queries of one sequence, at consecutive positions, and all its keys, by row.
///
/// Positions and columns of the keys come as runs of consecutive ones, each as the first and the number. So a sequence
/// that was never edited, in a mask whose columns are its rows, is one run of either.
#[derive(Debug, Clone)]
pub(crate) struct MaskBlock<P, C> {
    pub(crate) n: usize,
    pub(crate) position: i64,
    /// The positions of the keys. They are not negative and never fall.
    pub(crate) key_positions: P,
    pub(crate) key_columns: C,
}

/// Writes a mask of the given shape, with a plane for each of the slopes, or one without biases. The blocks' queries
/// are its first rows, in order.
pub(crate) fn fill<T, P, C>(
    mask: &mut [T],
    shape: [usize; 3],
    slopes: Option<&[f32]>,
    visibility: Visibility,
    blocks: impl IntoIterator<Item = MaskBlock<P, C>>,
) -> Result<(), Error>
where
    T: MaskElement,
    P: Iterator<Item = (i64, usize)> + Clone,
    C: Iterator<Item = (usize, usize)> + Clone,
{
    let [planes, rows, columns] = shape;
    // A product that overflows is longer than any slice, too.
    let plane_len = rows.saturating_mul(columns);
    let expected = planes.saturating_mul(plane_len);
    if mask.len() != expected {
        return Err(Error::MaskLength { shape, expected, got: mask.len() });
    }
    if mask.is_empty() {
        return Ok(());
    }
    let (mut start, hidden) = (0, T::from_f32(f32::NEG_INFINITY));
    for block in blocks {
        for (i, plane) in mask.chunks_exact_mut(plane_len).enumerate() {
            let slope = slopes.map(|slopes| slopes[i]);
            let rows = plane[start..start + block.n * columns].chunks_exact_mut(columns);
            for (row, query) in rows.zip(block.position..) {
                // Row by row, so that the second write finds the first in the cache.
                row.fill(hidden);
                visibility.show(row, query, &block, slope);
            }
        }
        start += block.n * columns;
    }
    mask.chunks_exact_mut(plane_len).for_each(|plane| plane[start..].fill(hidden));
    Ok(())
}

impl Visibility {
    /// Writes the keys that a query sees.
    fn show<T, P, C>(&self, mask: &mut [T], query: i64, block: &MaskBlock<P, C>, slope: Option<f32>)
    where
        T: MaskElement,
        P: Iterator<Item = (i64, usize)> + Clone,
        C: Iterator<Item = (usize, usize)> + Clone,
    {
        // Positions never fall, so rows before a row are those before a position.
        let rows_before = |position: i64| {
            let runs = block.key_positions.clone().take_while(|run| run.0 < position);
            runs.map(|(first, len)| len.min((position - first) as usize)).sum::<usize>()
        };
        let end = rows_before(query + 1);
        let start = if self.window == i64::MAX { 0 } else { rows_before(query - self.window + 1) };
        for rows in [0..self.sink.min(start), start..end] {
            if rows.is_empty() {
                continue;
            }
            let mut columns = Cursor::new(block.key_columns.clone(), rows.start);
            match slope {
                None => columns.take(rows.len(), |column, len| match &mut mask[column..column + len] {
                    // Where sequences grow by turns, most runs are of one key, too short for a call of memset.
                    [one] => *one = T::default(),
                    run => run.fill(T::default()),
                }),
                Some(slope) => {
                    let positions = block.key_positions.clone().map(|(first, len)| (first as usize, len));
                    let mut positions = Cursor::new(positions, rows.start);
                    columns.take(rows.len(), |column, len| {
                        let mut run = mask[column..column + len].iter_mut();
                        positions.take(len, |position, len| {
                            // Positions have 31 bits.
                            let distances = (position as i64 - query) as i32..;
                            for (value, distance) in run.by_ref().take(len).zip(distances) {
                                *value = T::from_f32(distance as f32 * slope);
                            }
                        });
                    });
                }
            }
        }
    }
}

/// A place in the values of rows, which come as runs: the first value and the number of rows.
struct Cursor<I> {
    runs: I,
    first: usize,
    left: usize,
}

impl<I: Iterator<Item = (usize, usize)>> Cursor<I> {
    /// Begins after this many rows.
    fn new(runs: I, rows: usize) -> Self {
        let mut cursor = Self { runs, first: 0, left: 0 };
        cursor.take(rows, |_, _| ());
        cursor
    }

    fn take(&mut self, mut rows: usize, mut run: impl FnMut(usize, usize)) {
        while rows > 0 {
            if self.left == 0 {
                let Some(next) = self.runs.next() else { return };
                (self.first, self.left) = next;
            }
            let len = rows.min(self.left);
            run(self.first, len);
            (self.first, self.left, rows) = (self.first + len, self.left - len, rows - len);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Masks of lengths and positions at their ends. Scripts compare which keys are visible.

    use std::iter::{Once, once};

    use half::f16;

    use super::*;

    #[test]
    fn a_mask_of_another_length_is_refused() {
        let spec = MaskSpec::default();
        let fill = |len: usize, shape| {
            let mut mask = vec![7.0_f32; len];
            let blocks = std::iter::empty::<MaskBlock<Once<_>, Once<_>>>();
            let result = fill(&mut mask, shape, spec.slopes, spec.visibility(None, 0), blocks);
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
        let spec = MaskSpec { slopes: Some(&slopes), ..MaskSpec::default() };
        let last = crate::sequences::positions::MAX_POSITION;
        let key_positions = [(0, 1), (last, 1)].into_iter();
        let block = MaskBlock { n: 1, position: last, key_positions, key_columns: once((0, 2)) };
        let (mut wide, mut narrow) = ([7.0_f32; 4], [f16::ONE; 4]);
        let all = [spec.visibility(Some(usize::MAX), 0), spec.visibility(None, usize::MAX)];
        fill(&mut wide, [2, 1, 2], spec.slopes, all[0], [block.clone()]).unwrap();
        fill(&mut narrow, [2, 1, 2], spec.slopes, all[1], [block]).unwrap();
        let far = -(last as f32);
        assert_eq!(wide.map(f32::to_bits), [far * 0.5, 0.0, far * 1e-5, 0.0].map(f32::to_bits));
        assert_eq!(narrow, wide.map(f16::from_f32));
    }
}
