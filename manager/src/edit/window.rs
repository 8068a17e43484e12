//! Removing the rows that a window has left behind.

use super::Editor;
use crate::seq_id::SeqId;
use crate::spec::Mode;

impl Editor<'_> {
    /// Removes the rows of a sequence that no later token will see, in pages whole pages of them.
    pub(crate) fn trim(&mut self, seq: SeqId) {
        let Some(window) = self.spec.window() else { return };
        let sequence = &self.state.sequences[seq];
        let kept = (window + self.spec.slack()) as i64;
        let mut rows = self.spec.sink()..sequence.positions.rows_before(sequence.positions.next() - kept + 1);
        if let Mode::Paged { page_size } = self.spec.mode() {
            rows = rows.start.next_multiple_of(page_size)..rows.end / page_size * page_size;
        }
        if rows.is_empty() {
            return;
        }
        let gone = sequence.positions.at(rows.end - 1);
        if let Err(error) = self.remove_for_good(seq, rows) {
            unreachable!("whole pages, cells, and rows of a run leave without new ones: {error}");
        }
        let sequence = &mut self.state.sequences[seq];
        sequence.gone = sequence.gone.max(Some(gone));
    }
}
