//! Changing positions: of rows that stay, whose keys have to be rotated then.

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::positions::MAX_POSITION;
use crate::spec::{KeyForm, Mode};
use crate::state::State;

/// The context of a conversation, and the room that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextShift {
    /// Positions of the context.
    pub n_ctx: i64,
    /// Tokens that are to be appended.
    pub n_new: i64,
    /// The first positions, which stay.
    pub n_keep: i64,
    /// How many positions after them go; half of them unless given.
    pub n_discard: Option<i64>,
}

impl State {
    /// Adds `delta` to the positions of rows in a range. Rows that would come below 0 are removed.
    pub(crate) fn add_to_positions(&mut self, seq: SeqId, positions: Range<i64>, delta: i64) -> Result<(), Error> {
        let sequence = self.intact(seq)?;
        let mut rows = sequence.positions.rows(positions.clone());
        if positions.is_empty() || delta == 0 {
            return Ok(());
        }
        // The next search for cells begins at the first one that is freed.
        self.set_head(usize::MAX);
        if rows.is_empty() {
            return Ok(());
        }
        let sequence = &self.sequences[seq];
        let last = sequence.positions.at(rows.end - 1);
        if last.checked_add(delta).is_none_or(|last| last > MAX_POSITION) {
            let first = sequence.positions.at(rows.start).saturating_add(delta);
            return Err(Error::PositionOverflow { append: None, first, n: rows.len(), max: MAX_POSITION });
        }
        let below = sequence.positions.rows_before(delta.saturating_neg()).clamp(rows.start, rows.end);
        let removed = rows.start..below;
        let kept = below..rows.end;
        if !kept.is_empty() {
            self.check_shiftable(seq)?;
        }
        self.check_order(seq, &rows, &kept, |position| position + delta)?;
        if !removed.is_empty() {
            self.remove_rows(seq, removed.clone())?;
            rows.end -= removed.len();
        }
        self.map_positions(seq, rows, true, |position| position + delta)?;
        let sequence = &mut self.sequences[seq];
        // A row that would have come below 0 would have been removed.
        let moved = |gone: i64| if positions.contains(&gone) { gone.saturating_add(delta) } else { gone };
        sequence.gone = sequence.gone.map(moved).filter(|&gone| gone >= 0).map(|gone| gone.min(MAX_POSITION));
        Ok(())
    }

    pub(crate) fn divide_positions(&mut self, seq: SeqId, positions: Range<i64>, divisor: i64) -> Result<(), Error> {
        let sequence = self.intact(seq)?;
        Error::check_range("d", divisor, 1, i64::MAX)?;
        let rows = sequence.positions.rows(positions.clone());
        // Position 0 stays.
        if rows.is_empty() || divisor == 1 || sequence.positions.at(rows.end - 1) == 0 {
            return Ok(());
        }
        self.check_shiftable(seq)?;
        self.check_order(seq, &rows, &rows, |position| position / divisor)?;
        self.map_positions(seq, rows, false, |position| position / divisor)?;
        let sequence = &mut self.sequences[seq];
        sequence.gone = sequence.gone.map(|gone| if positions.contains(&gone) { gone / divisor } else { gone });
        Ok(())
    }

    /// Makes room in a context: returns how many positions were discarded, 0 where there is room.
    pub(crate) fn context_shift(&mut self, seq: SeqId, shift: &ContextShift) -> Result<i64, Error> {
        let n_past = self.intact(seq)?.positions.next();
        let ContextShift { n_ctx, n_new, n_keep, n_discard } = *shift;
        for (name, got, min) in [("n_ctx", n_ctx, 1), ("n_new", n_new, 0), ("n_keep", n_keep, 0)] {
            Error::check_range(name, got, min, i64::MAX)?;
        }
        if n_past.saturating_add(n_new) < n_ctx {
            return Ok(0);
        }
        let n_discard = n_discard.unwrap_or((n_past - n_keep).max(0) / 2);
        Error::check_range("n_discard", n_discard, 0, i64::MAX)?;
        if n_discard == 0 || n_keep >= n_past {
            return Err(Error::NoProgress { n_past, n_keep });
        }
        let behind = n_keep.saturating_add(n_discard);
        self.remove_positions(seq, n_keep..behind)?;
        self.add_to_positions(seq, behind..i64::MAX, -n_discard)?;
        self.set_head(0);
        Ok(n_discard)
    }

    /// Checks that the keys of a sequence can be rotated once more, where they have to be.
    pub(super) fn check_shiftable(&self, seq: SeqId) -> Result<(), Error> {
        self.check_whole(seq)?;
        if self.spec.key_form == KeyForm::PreRope {
            return Ok(());
        }
        if let Some(why) = self.spec.not_shiftable() {
            return Err(Error::NotShiftable { why });
        }
        let shifts = self.sequences[seq].shifts;
        match self.spec.shift_limit() {
            Some(limit) if shifts >= limit => Err(Error::ShiftLimit { shifts, limit }),
            _ => Ok(()),
        }
    }

    /// Checks that positions do not fall at the ends of `rows` when `kept`, the last of them, is mapped and the others
    /// are removed.
    fn check_order(
        &self,
        seq: SeqId,
        rows: &Range<usize>,
        kept: &Range<usize>,
        f: impl Fn(i64) -> i64,
    ) -> Result<(), Error> {
        let positions = &self.sequences[seq].positions;
        if kept.is_empty() {
            return Ok(());
        }
        let mapped = |row: usize| f(positions.at(row));
        let before = rows.start.checked_sub(1).map(|row| (positions.at(row), mapped(kept.start)));
        let behind = (rows.end < positions.len()).then(|| (mapped(rows.end - 1), positions.at(rows.end)));
        for (min, got) in before.into_iter().chain(behind) {
            if got < min {
                return Err(Error::PositionOrder { append: None, got, min });
            }
        }
        Ok(())
    }

    /// Changes the positions of rows. Where keys are stored rotated, the rows become the sequence's own; cells do in
    /// any case, as a cell has one position.
    pub(crate) fn map_positions(
        &mut self,
        seq: SeqId,
        rows: Range<usize>,
        consecutive: bool,
        f: impl Fn(i64) -> i64,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let key = self.prefix_key(&self.sequences[seq], rows.start);
        self.note_edit(seq);
        let roped = self.spec.key_form == KeyForm::Roped;
        if roped || self.spec.mode == Mode::Cells {
            self.own_rows(seq, rows.clone())?;
        }
        let sequence = &mut self.sequences[seq];
        if roped && sequence.rotated.is_none() {
            sequence.rotated = Some(sequence.positions.clone());
            self.may_rotate = true;
        }
        (sequence.known, sequence.key) = (sequence.known.min(rows.start), key);
        sequence.positions.map(rows, consecutive, f);
        sequence.settle_rotation();
        Ok(())
    }

    /// Makes rows a sequence's own: pages that others have are copied, sealed ones are unsealed.
    fn own_rows(&mut self, seq: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let page_size = self.page_size();
        let sequence = &self.sequences[seq];
        if sequence.table().is_empty() {
            return Ok(());
        }
        let (first, len) = (rows.start / page_size, sequence.len());
        let pages = sequence.table()[first..rows.end.div_ceil(page_size)].to_vec();
        self.require(pages.iter().filter(|&&page| self.pages.refcount(page) > 1).count())?;
        let mut free = 0;
        for (index, page) in (first..).zip(pages) {
            if self.pages.refcount(page) == 1 {
                self.unseal_page(page);
                continue;
            }
            let own = self.take_required(free);
            free = own as usize + 1;
            let slot = |page: u32| page as usize * page_size;
            self.queue_copy(RowCopy { src: slot(page), dst: slot(own), len: page_size.min(len - index * page_size) });
            let sequence = &mut self.sequences[seq];
            sequence.table_mut()[index] = own;
            sequence.version += 1;
            self.unshare_page(page);
        }
        Ok(())
    }
}
