//! Key positions and masks: the positions of the keys in a step's outputs, and which query sees which key.

use std::iter::once;

use kvcache_simd::Float as MaskElement;

use crate::error::Error;
use crate::sequences::sequence::Sequence;
use crate::spec::Mode;
use crate::step::Step;
use crate::step::mask::{self, MaskBlock, MaskSpec};
use crate::step::plan::Entry;

/// The number that the rows of a mask over cells are a multiple of.
const MASK_ROWS: usize = 32;

impl Step<'_> {
    /// Replaces what is in `positions` by the positions of all rows, in the order of `key` and `value`: shape
    /// (`kvstarts[B]`).
    pub fn key_positions_into(&self, positions: &mut Vec<i64>) {
        let state = &self.0.state;
        positions.clear();
        if state.spec.mode != Mode::Cells {
            for entry in &state.plan.entries {
                positions.extend(state.sequences[entry.seq].positions.iter());
            }
        } else if let [written, seen] = *self.kvstarts().get(1..).unwrap_or_default() {
            positions.extend_from_slice(self.positions());
            positions.resize(seen as usize, -1);
            let cells = &mut positions[written as usize..];
            for sequence in state.sequences.values() {
                for (&cell, position) in sequence.table().iter().zip(sequence.positions.iter()) {
                    cells[cell as usize] = position;
                }
            }
        }
    }

    /// The planes, rows and columns of a mask. In the mode `cells` the rows are the tokens, rounded up to a multiple of
    /// 32, and the columns the cells of the second entry; else they are the tokens and the rows of `key` and `value`.
    pub fn mask_shape(&self, spec: &MaskSpec<'_>) -> [usize; 3] {
        let last = |starts: &[i64]| starts.last().map_or(0, |&end| end as usize);
        let (tokens, rows) = (last(self.seqstarts()), last(self.kvstarts()));
        match self.0.spec().mode {
            Mode::Cells => spec.shape(tokens.next_multiple_of(MASK_ROWS), rows - tokens),
            Mode::Paged { .. } | Mode::Runs => spec.shape(tokens, rows),
        }
    }

    /// Writes a mask of the shape [`mask_shape`](Self::mask_shape), of any float type, for attention over `key` and
    /// `value`; in the mode `cells` over the keys of the second entry. A visible key is 0 or a bias, all else is -inf.
    ///
    /// # Errors
    /// [`Error::MaskLength`].
    pub fn mask_into<T: MaskElement>(&self, spec: &MaskSpec<'_>, mask: &mut [T]) -> Result<(), Error> {
        let (shape, slopes, state) = (self.mask_shape(spec), spec.slopes, &self.0.state);
        let visibility = spec.visibility(state.spec.window, state.spec.sink);
        let entries = state.plan.entries.iter().map(|entry| (entry, &state.sequences[entry.seq]));
        match state.spec.mode {
            Mode::Cells => {
                let blocks = entries.map(|(entry, sequence)| {
                    let cells = sequence.table().chunk_by(|&cell, &next| cell + 1 == next);
                    block(entry, sequence, cells.map(|run| (run[0] as usize, run.len())))
                });
                mask::fill(mask, shape, slopes, visibility, blocks)
            }
            Mode::Paged { .. } | Mode::Runs => {
                let blocks = entries
                    .zip(self.kvstarts())
                    .map(|((entry, sequence), &start)| block(entry, sequence, once((start as usize, sequence.len()))));
                mask::fill(mask, shape, slopes, visibility, blocks)
            }
        }
    }
}

/// The queries of a batch entry, and the keys of its sequence, which are in the given columns.
fn block<C>(
    entry: &Entry,
    sequence: &Sequence,
    key_columns: C,
) -> MaskBlock<impl Iterator<Item = (i64, usize)> + Clone, C> {
    let key_positions = sequence.positions.runs().map(|run| (run.position, run.len));
    MaskBlock { n: entry.n, position: entry.position, key_positions, key_columns }
}
