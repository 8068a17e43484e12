//! Key positions and masks: the positions of the keys in a step's outputs, and which query sees which key.

use std::iter::once;

use crate::error::Error;
use crate::manager::Manager;
use crate::sequences::sequence::Sequence;
use crate::spec::Mode;
use crate::step::batch::Batch;
use crate::step::mask::{self, MaskBlock, MaskElement, MaskSpec};
use crate::step::plan::Entry;

/// The number that the rows of a mask over cells are a multiple of.
const MASK_ROWS: usize = 32;

impl Manager {
    pub(crate) fn key_positions_into(&self, positions: &mut Vec<i64>) {
        positions.clear();
        if self.spec().mode != Mode::Cells {
            for entry in &self.state.plan.entries {
                positions.extend(self.state.sequences[entry.seq].positions.iter());
            }
        } else if let [written, seen] = *self.tensors.batch.kvstarts.get(1..).unwrap_or_default() {
            positions.extend_from_slice(&self.tensors.batch.positions);
            positions.resize(seen as usize, -1);
            let cells = &mut positions[written as usize..];
            for sequence in self.state.sequences.values() {
                for (&cell, position) in sequence.table().iter().zip(sequence.positions.iter()) {
                    cells[cell as usize] = position;
                }
            }
        }
    }

    pub(crate) fn mask_shape(&self, spec: &MaskSpec<'_>) -> [usize; 3] {
        let last = |starts: &[i64]| starts.last().map_or(0, |&end| end as usize);
        let Batch { seqstarts, kvstarts, .. } = &self.tensors.batch;
        let (tokens, rows) = (last(seqstarts), last(kvstarts));
        match self.spec().mode {
            Mode::Cells => spec.shape(tokens.next_multiple_of(MASK_ROWS), rows - tokens),
            Mode::Paged { .. } | Mode::Runs => spec.shape(tokens, rows),
        }
    }

    pub(crate) fn mask_into<T: MaskElement>(&self, spec: &MaskSpec<'_>, mask: &mut [T]) -> Result<(), Error> {
        let (shape, slopes) = (self.mask_shape(spec), spec.slopes);
        let visibility = spec.visibility(self.spec().window, self.spec().sink);
        let entries = self.state.plan.entries.iter().map(|entry| (entry, &self.state.sequences[entry.seq]));
        match self.spec().mode {
            Mode::Cells => {
                let blocks = entries.map(|(entry, sequence)| {
                    let cells = sequence.table().chunk_by(|&cell, &next| cell + 1 == next);
                    block(entry, sequence, cells.map(|run| (run[0] as usize, run.len())))
                });
                mask::fill(mask, shape, slopes, visibility, blocks)
            }
            Mode::Paged { .. } | Mode::Runs => {
                let blocks = entries
                    .zip(&self.tensors.batch.kvstarts)
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
