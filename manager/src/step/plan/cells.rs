//! Rows in cells: new ones of all appends side by side, or each sequence's in a run, which grows in place or moves.

use kvcache_kernels::RowCopy;

use super::Entry;
use crate::error::Error;
use crate::sequences::SeqId;
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

    /// Gives each append room in its sequence's run.
    pub(super) fn place_in_runs(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        for (i, append) in appends.iter().enumerate() {
            let seq = append.seq;
            let (start, position, known) = self.known_rows(append);
            self.note_append(seq);
            // Both are rows of a cache.
            let need = start.saturating_add(append.len());
            self.grow_run(seq, need).ok_or_else(|| self.no_slot(need))?;
            self.sequences[seq].push_rows(append.len(), position);
            if let Some(tokens) = known {
                self.remember(seq, start, tokens);
            }
            let (n, cached, replaced) = (append.len(), 0, false);
            self.plan.entries.push(Entry { seq, append: i, start, n, cached, position, replaced });
        }
        Ok(())
    }

    /// Gives a sequence a run for `need` rows: its own if that has room, or can grow in place; else another, of twice
    /// as many cells if there are, to which its rows move.
    fn grow_run(&mut self, seq: SeqId, need: usize) -> Option<()> {
        let sequence = &self.sequences[seq];
        let (len, reserve) = (sequence.len(), sequence.reserve);
        let reserved = sequence.run();
        if need <= reserved.len() {
            return Some(());
        }
        let wish = if reserved.is_empty() { reserve } else { reserved.len().saturating_mul(2) }.max(need);
        if !reserved.is_empty() {
            let behind = |cells: usize| Some(reserved.end..reserved.start.checked_add(cells)?);
            let mut grown = [wish, need].into_iter().filter_map(behind);
            if let Some(cells) = grown.find(|cells| self.take_behind(cells.clone())) {
                self.set_run(seq, reserved.start..cells.end, 0..0);
                return Some(());
            }
        }
        let (start, cells) = self.take_run(need, wish)?;
        if len > 0 {
            let copy = RowCopy { src: reserved.start, dst: start, len };
            self.copy_tokens(copy);
            self.plan.copies.push(copy);
        }
        self.set_run(seq, start..start + cells, reserved);
        Some(())
    }
}
