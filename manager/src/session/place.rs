//! Slots for the sequences of a session.

use std::sync::Arc;

use super::error::SessionError;
use super::sequences::SavedSequence;
use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::positions::Positions;
use crate::sequences::sequence::MemoryLocation;
use crate::spec::{KeyForm, Mode};
use crate::state::State;

/// A slot that is to hold a row of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) row: u64,
    pub(super) slot: usize,
}

/// Sequences that have their slots.
#[derive(Debug, Default)]
pub(super) struct Placed {
    pub(super) seqs: Vec<SeqId>,
    /// The slots that are to be written, in order of the file's rows.
    pub(super) targets: Vec<Target>,
}

/// A row of the file and, where those who share a slot need have it in common, its position.
type Row = (u64, i64);

/// Gives saved sequences their slots.
pub(super) fn place(state: &mut State, sequences: &[SavedSequence]) -> Result<Placed, Error> {
    let (page_size, max_pages) = (state.page_size(), state.spec.max_pages);
    for (i, sequence) in sequences.iter().enumerate() {
        let rows = sequence.rows.len();
        let need = rows.div_ceil(page_size);
        if let Some(max_pages) = max_pages.filter(|&max_pages| need > max_pages) {
            return Err(SessionError::TooManyPages { sequence: i, rows, page_size, need, max_pages }.into());
        }
    }
    let mut placer = Placer { state, placed: Placed::default() };
    match placer.state.spec.mode {
        Mode::Runs => placer.place_in_runs(sequences)?,
        Mode::Paged { .. } | Mode::Cells => placer.place_in_pages(sequences)?,
    }
    placer.placed.targets.sort_unstable();
    Ok(placer.placed)
}

struct Placer<'a> {
    state: &'a mut State,
    placed: Placed,
}

/// The pages, or cells, of sequences: by which of them have the same rows.
struct Groups {
    /// By sequence and index in its table: the group.
    of: Vec<Vec<usize>>,
    /// By group: a page with most rows, as its sequence and index.
    longest: Vec<(usize, usize)>,
}

impl Groups {
    /// Two pages whose rows are the same, as far as both have any, are of one group. There are as few groups as can be.
    fn new(rows: &[Vec<Row>], page_size: usize) -> Self {
        let page = |&(sequence, index): &(usize, usize)| {
            let rows: &[Row] = &rows[sequence];
            &rows[index * page_size..rows.len().min((index + 1) * page_size)]
        };
        let mut of: Vec<Vec<usize>> = rows.iter().map(|rows| vec![0; rows.len().div_ceil(page_size)]).collect();
        let pages = of.iter().enumerate().flat_map(|(sequence, table)| (0..table.len()).map(move |i| (sequence, i)));
        let mut pages: Vec<_> = pages.collect();
        // A page stands before all that begin with its rows, the next of which is one of them if any is.
        pages.sort_unstable_by(|a, b| page(a).cmp(page(b)).then(a.cmp(b)));
        let mut longest: Vec<(usize, usize)> = Vec::new();
        let mut behind: Option<(usize, usize)> = None;
        for at in pages.into_iter().rev() {
            if behind.is_none_or(|behind| !page(&behind).starts_with(page(&at))) {
                longest.push(at);
            }
            of[at.0][at.1] = longest.len() - 1;
            behind = Some(at);
        }
        Self { of, longest }
    }
}

#[derive(Debug, Clone, Copy)]
enum Page {
    /// The prefix index had it.
    Sealed(u32),
    Taken(u32),
}

impl Placer<'_> {
    /// Gives each sequence a run of its own.
    fn place_in_runs(&mut self, sequences: &[SavedSequence]) -> Result<(), Error> {
        let need = sequences.iter().fold(0_usize, |need, sequence| need.saturating_add(sequence.rows.len()));
        self.require(need)?;
        for sequence in sequences {
            let len = sequence.rows.len();
            let start = match len {
                0 => 0,
                _ => self.state.take_cells(len).ok_or_else(|| self.state.no_slot(len))?,
            };
            self.placed.targets.extend((start..).zip(&sequence.rows).map(|(slot, &row)| Target { row, slot }));
            self.create(sequence, MemoryLocation::Run(start..start + len));
        }
        Ok(())
    }

    /// Gives the sequences pages, or cells, which they share where their rows are the same.
    fn place_in_pages(&mut self, sequences: &[SavedSequence]) -> Result<(), Error> {
        let page_size = self.state.page_size();
        let cells = self.state.spec.mode == Mode::Cells;
        // A cell has one position; so has a key that is stored rotated.
        let positions = cells || self.state.spec.key_form == KeyForm::Roped;
        let rows: Vec<Vec<Row>> = sequences
            .iter()
            .map(|SavedSequence { rows, positions: all, .. }| {
                let row = |(&row, &position): (&u64, &i32)| (row, if positions { i64::from(position) } else { 0 });
                rows.iter().zip(all).map(row).collect()
            })
            .collect();
        let groups = Groups::new(&rows, page_size);
        let mut pages: Vec<Option<Page>> = vec![None; groups.longest.len()];

        // Before any page is taken, which might be one of these.
        let mut tables = Vec::with_capacity(sequences.len());
        for (sequence, groups) in sequences.iter().zip(&groups.of) {
            let table = self.map_prefix(sequence);
            for (&group, &page) in groups.iter().zip(&table) {
                pages[group].get_or_insert(Page::Sealed(page));
            }
            tables.push(table);
        }
        let need = pages.iter().filter(|page| page.is_none()).count();
        self.require(need)?;
        let mut run = self.state.take_neighbors(need);

        for ((sequence, groups_of), mut table) in sequences.iter().zip(&groups.of).zip(tables) {
            for &group in &groups_of[table.len()..] {
                table.push(match pages[group] {
                    Some(Page::Sealed(page)) => {
                        self.state.map_page(page);
                        page
                    }
                    Some(Page::Taken(page)) => {
                        self.state.share_page(page);
                        page
                    }
                    None => {
                        let page = self.state.take_next(&mut run);
                        pages[group] = Some(Page::Taken(page));
                        let (longest, index) = groups.longest[group];
                        let rows = &sequences[longest].rows[index * page_size..];
                        let slots = page as usize * page_size..(page as usize + 1) * page_size;
                        self.placed.targets.extend(slots.zip(rows).map(|(slot, &row)| Target { row, slot }));
                        page
                    }
                });
            }
            self.create(sequence, MemoryLocation::Table(table));
        }
        Ok(())
    }

    /// Checks that this many pages, or cells, can be taken.
    fn require(&self, need: usize) -> Result<(), SessionError> {
        let page_size = self.state.page_size();
        let free = self.state.available();
        if need <= free {
            return Ok(());
        }
        Err(SessionError::NoRoom { need: need.saturating_mul(page_size), free: free * page_size })
    }

    /// The longest sealed chain of a sequence's tokens, without the last one: its pages, each with a table entry more.
    fn map_prefix(&mut self, sequence: &SavedSequence) -> Vec<u32> {
        let mut table = Vec::new();
        if !self.state.spec.prefix_sharing {
            return table;
        }
        let page_size = self.state.page_size();
        let mut key = self.state.root(&sequence.salt);
        let known = known(sequence).min(sequence.rows.len().saturating_sub(1));
        for tokens in sequence.tokens[..known].chunks_exact(page_size) {
            key = key.followed_by(tokens);
            let Some(page) = self.state.prefix.find(key, tokens) else {
                break;
            };
            self.state.map_page(page);
            table.push(page);
        }
        table
    }

    /// Adds a sequence whose slots are these, and seals its full pages.
    fn create(&mut self, saved: &SavedSequence, place: MemoryLocation) {
        let page_size = self.state.page_size();
        let mut sequence = self.state.new_sequence(Arc::from(&*saved.salt), 0);
        sequence.place = place;
        (sequence.shifts, sequence.gone, sequence.ga_i) = (saved.shifts, saved.gone, saved.ga_i);
        let mut positions = Positions::default();
        saved.positions.iter().for_each(|&position| positions.push(1, i64::from(position)));
        sequence.positions = positions;
        sequence.known = known(saved);
        if self.state.spec.prefix_sharing {
            for (index, tokens) in saved.tokens[..sequence.known].chunks_exact(page_size).enumerate() {
                let page = sequence.table()[index];
                let key = sequence.key.followed_by(tokens);
                // A page of another salt, or of rows after others: no prefill with this salt has given it.
                if self.state.prefix.key(page).is_some_and(|sealed| sealed != key) {
                    sequence.known = index * page_size;
                    break;
                }
                sequence.key = key;
                if self.state.prefix.key(page).is_none() {
                    self.state.seal_page(page, key);
                }
            }
        }
        for (row, &token) in saved.tokens[..sequence.known].iter().enumerate() {
            self.state.prefix.slot_tokens[sequence.slot(row, page_size)] = token;
        }
        let seq = self.state.insert(sequence);
        self.placed.seqs.push(seq);
    }
}

/// How many leading rows have tokens that are known and positions that are their rows.
fn known(sequence: &SavedSequence) -> usize {
    let rows = sequence.positions.iter().zip(0..);
    rows.take(sequence.tokens.len()).take_while(|&(&position, row)| position == row).count()
}
