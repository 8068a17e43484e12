//! Defragmentation: rows move together, as bytes, and keep their positions.

use std::collections::HashMap;

use kvcache_kernels::RowCopy;

use crate::sequences::SeqId;
use crate::sequences::sequence::MemoryLocation;
use crate::slots::cells;
use crate::spec::Mode;
use crate::state::State;

impl State {
    /// Moves rows together by at most `max_moves` copies, which it gives.
    pub(crate) fn defragment(&mut self, max_moves: Option<usize>) -> Vec<RowCopy> {
        let copies = match self.spec.mode {
            Mode::Paged { .. } => return self.compact(max_moves.unwrap_or(usize::MAX)),
            Mode::Runs => self.slide_runs(max_moves.unwrap_or(usize::MAX)),
            Mode::Cells => self.fill_holes(max_moves),
        };
        self.enqueue(&copies);
        copies
    }

    /// Moves the highest live page to the lowest free one below it, `pages` times at most. Returns the copies.
    pub(crate) fn compact(&mut self, pages: usize) -> Vec<RowCopy> {
        let page_size = self.page_size();
        let live = (0..self.pages.len() as u32).rev().filter(|&page| self.pages.refcount(page) > 0);
        let pairs = live.zip(self.pages.freed()).take(pages);
        let moves: Vec<(u32, u32)> = pairs.take_while(|(src, dst)| dst < src).collect();
        if moves.is_empty() {
            return Vec::new();
        }
        self.pages.move_pages(&moves);
        let mut rows = HashMap::new();
        let places: HashMap<u32, u32> = moves.iter().copied().collect();
        for sequence in self.sequences.values_mut() {
            let len = sequence.len();
            let mut moved = false;
            for (index, page) in sequence.table_mut().iter_mut().enumerate() {
                if let Some(&to) = places.get(page) {
                    *page = to;
                    moved = true;
                    let most = rows.entry(to).or_insert(0);
                    *most = page_size.min(len - index * page_size).max(*most);
                }
            }
            sequence.version += u64::from(moved);
        }
        let slot = |page: u32| page as usize * page_size;
        let copy = |&(src, dst): &(u32, u32)| {
            self.prefix.move_page(src, dst);
            // A sealed page is served whole, also where its sequences have a part of it.
            let len = if self.prefix.key(dst).is_some() { page_size } else { rows[&dst] };
            RowCopy { src: slot(src), dst: slot(dst), len }
        };
        let copies: Vec<RowCopy> = moves.iter().map(copy).collect();
        self.queue.extend_from_slice(&copies);
        copies
    }

    fn slide_runs(&mut self, max_moves: usize) -> Vec<RowCopy> {
        let mut runs: Vec<(usize, SeqId)> = Vec::new();
        for (seq, sequence) in self.sequences.iter().filter(|(_, sequence)| !sequence.run().is_empty()) {
            runs.push((sequence.run().start, seq));
        }
        runs.sort_unstable();
        let (mut copies, mut end) = (Vec::new(), 0);
        for (start, seq) in runs {
            let sequence = &mut self.sequences[seq];
            let reserved = sequence.run();
            if start > end {
                if copies.len() == max_moves {
                    break;
                }
                copies.push(RowCopy { src: start, dst: end, len: sequence.len() });
                let moved = end..end + reserved.len();
                sequence.place = MemoryLocation::Run(moved.clone());
                self.pages.free_cells(reserved);
                let taken = self.pages.take_behind(moved);
                debug_assert!(taken, "cells in front of a run are free when the runs before it have moved");
            }
            end = self.sequences[seq].run().end;
        }
        self.pages.set_head(self.pages.busy().and_then(|busy| busy.next_free(0..busy.len())).unwrap_or(0));
        copies
    }

    /// Moves the last cells into the first holes.
    fn fill_holes(&mut self, max_moves: Option<usize>) -> Vec<RowCopy> {
        let Some(busy) = self.pages.busy() else { return Vec::new() };
        let used = busy.count();
        let copies = cells::defragmentation(busy, max_moves);
        let mut places = HashMap::new();
        for &RowCopy { src, dst, len } in &copies {
            self.pages.move_cells(src, dst, len);
            places.extend((src..src + len).zip(dst..dst + len));
        }
        for cell in self.sequences.values_mut().flat_map(|sequence| sequence.table_mut()) {
            if let Some(&to) = places.get(&(*cell as usize)) {
                *cell = to as u32;
            }
        }
        self.pages.set_head(if used == self.pages.len() { 0 } else { used });
        copies
    }

    fn enqueue(&mut self, copies: &[RowCopy]) {
        for &RowCopy { src, dst, len } in copies {
            self.prefix.slot_tokens.copy_within(src..src + len, dst);
        }
        self.queue.extend_from_slice(copies);
    }
}
