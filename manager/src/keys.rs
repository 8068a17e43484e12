//! What attention needs to know of the keys that a step's outputs have: their positions, and which query sees which.

use crate::error::Error;
use crate::manager::Manager;
use crate::mask::{self, KeyRun, MaskBlock, MaskElement};
use crate::mask_spec::MaskSpec;
use crate::spec::Mode;
use crate::tensors::Tensors;

/// What the rows of a mask over cells are a multiple of.
const MASK_ROWS: usize = 32;

impl Manager {
    pub(crate) fn key_positions_into(&self, positions: &mut Vec<i64>) {
        positions.clear();
        if self.spec().mode() != Mode::Cells {
            for entry in &self.plan.entries {
                positions.extend(self.state.sequences[entry.seq].positions.iter());
            }
        } else if let [written, seen] = *self.tensors.kvstarts.get(1..).unwrap_or_default() {
            positions.extend_from_slice(&self.tensors.positions);
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
        let Tensors { seqstarts, kvstarts, .. } = &self.tensors;
        let (tokens, rows) = (last(seqstarts), last(kvstarts));
        match self.spec().mode() {
            Mode::Cells => spec.shape(tokens.next_multiple_of(MASK_ROWS), rows - tokens),
            Mode::Paged { .. } | Mode::Runs => spec.shape(tokens, rows),
        }
    }

    pub(crate) fn mask_into<T: MaskElement>(&self, spec: &MaskSpec<'_>, mask: &mut [T]) -> Result<(), Error> {
        let mut runs = Vec::new();
        let mut ends = Vec::with_capacity(self.plan.entries.len());
        for (b, entry) in self.plan.entries.iter().enumerate() {
            let sequence = &self.state.sequences[entry.seq];
            let (len, page_size) = (sequence.len(), self.spec().page_size());
            let positions = sequence.positions.runs().map(|run| (run.position, run.len));
            match self.spec().mode() {
                Mode::Cells => {
                    let cells = sequence.segments(0..len, page_size).map(|segment| (segment.slot, segment.len));
                    KeyRun::push_zipped(&mut runs, positions, cells);
                }
                Mode::Paged { .. } | Mode::Runs => {
                    KeyRun::push_zipped(&mut runs, positions, [(self.tensors.kvstarts[b] as usize, len)]);
                }
            }
            ends.push(runs.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let blocks = self.plan.entries.iter().zip(starts.zip(&ends)).map(|(entry, (start, &end))| MaskBlock {
            n: entry.n,
            position: entry.position,
            keys: &runs[start..end],
        });
        let visibility = spec.visibility(self.spec().window(), self.spec().sink());
        mask::fill(mask, self.mask_shape(spec), spec.slopes(), visibility, blocks)
    }
}
