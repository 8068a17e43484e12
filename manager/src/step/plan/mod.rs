//! The planner: gives the rows of a step their slots.

mod cells;
mod pages;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::memory::block::Block;
use crate::sequences::SeqId;
use crate::spec::Mode;
use crate::state::State;
use crate::step::append::Append;

/// One batch entry of a step; in the mode `cells`, one append of its first entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) seq: SeqId,
    pub(crate) append: usize,
    /// Rows before it: `start_pos`.
    pub(crate) start: usize,
    /// Its tokens: `seqlen`.
    pub(crate) n: usize,
    /// Tokens of the append that were found in the prefix index.
    pub(crate) cached: usize,
    pub(crate) position: i64,
    /// Whether an entry of the sequence's table was replaced.
    pub(crate) replaced: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) entries: Vec<Entry>,
    /// Blocks to write before the copies are made, each with its page.
    pub(crate) loads: Vec<(u32, Block)>,
    pub(crate) copies: Vec<RowCopy>,
    /// Who writes into pages that several sequences have: the page, the rows that the writer has in it, and the append.
    /// Sorted.
    writers: Vec<(u32, usize, usize)>,
    /// Pages that are needed and cannot be had. Once there are any, no page is taken.
    pub(crate) missing: usize,
}

impl State {
    /// Begins a plan: checks its appends. All changes are in the journal; after an error they have to be rolled back.
    pub(crate) fn begin_plan(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.begin();
        self.plan.entries.clear();
        self.plan.copies.clear();
        self.plan.loads.clear();
        self.plan.missing = 0;
        for (i, append) in appends.iter().enumerate() {
            append.check(i, self)?;
            self.mark(append.seq, i);
        }
        Ok(())
    }

    /// Gives the rows of checked appends their slots.
    pub(crate) fn place_rows(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        match self.spec.mode {
            Mode::Paged { .. } => self.place_in_pages(appends)?,
            Mode::Runs => self.place_in_runs(appends)?,
            Mode::Cells => self.place_in_cells(appends)?,
        }
        self.sort_entries();
        Ok(())
    }

    /// Entries of one token come first; the others, and those among themselves, in the order of the appends.
    fn sort_entries(&mut self) {
        self.plan.entries.sort_unstable_by_key(|entry| (entry.n != 1, entry.append));
    }

    /// Before rows are appended: how many there are, the first new position, and the new tokens, if with them all
    /// tokens are known and all positions are rows.
    fn known_rows<'t>(&self, append: &Append<'t>) -> (usize, i64, Option<&'t [u32]>) {
        let sequence = &self.sequences[append.seq];
        let (before, position) = (sequence.len(), append.first_position(sequence.positions.next()));
        let known = append.known().filter(|_| sequence.known == before && position == before as i64);
        (before, position, known)
    }

    /// Notes the tokens of rows from `row` on, which follow known ones, and seals the pages that they fill.
    fn remember(&mut self, seq: SeqId, row: usize, tokens: &[u32]) {
        let page_size = self.spec.page_size();
        let mut rest = tokens;
        let sequence = &self.sequences[seq];
        for segment in sequence.segments(row..row + tokens.len(), page_size) {
            let (here, behind) = rest.split_at(segment.len);
            self.prefix.slot_tokens[segment.slot..segment.slot + segment.len].copy_from_slice(here);
            rest = behind;
        }
        let known = row + tokens.len();
        self.sequences[seq].known = known;
        if self.spec.prefix_sharing {
            for full in row / page_size..known / page_size {
                let sequence = &mut self.sequences[seq];
                let page = sequence.table()[full];
                let key = sequence.key.followed_by(self.prefix.tokens(page));
                sequence.key = key;
                self.seal_page(page, key);
            }
        }
    }
}
