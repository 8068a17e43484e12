//! Rows in cells: all new ones of a step in neighboring cells.

use super::Entry;
use crate::error::Error;
use crate::state::State;
use crate::step::append::Append;

impl State {
    /// Gives the appends their cells, appends of one token first.
    pub(super) fn place_in_cells(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        let need = appends.iter().fold(0_usize, |need, append| need.saturating_add(append.len()));
        if need == 0 {
            return Ok(());
        }
        let mut slot = self.take_cells(need).ok_or_else(|| self.no_slot(need))?;
        for (i, append) in appends.iter().enumerate() {
            let (start, position, _) = self.known_rows(append);
            let entry =
                Entry { seq: append.seq, append: i, start, n: append.len(), cached: 0, position, replaced: false };
            self.plan.entries.push(entry);
        }
        self.sort_entries();
        for i in 0..self.plan.entries.len() {
            let Entry { seq, append, start, n, position, .. } = self.plan.entries[i];
            let (.., known) = self.known_rows(&appends[append]);
            self.note_append(seq);
            for cell in slot..slot + n {
                self.share_page(cell as u32);
            }
            let sequence = &mut self.sequences[seq];
            sequence.table_mut().extend(slot as u32..(slot + n) as u32);
            sequence.push_rows(n, position);
            if let Some(tokens) = known {
                self.remember(seq, start, tokens);
            }
            slot += n;
        }
        Ok(())
    }
}
