//! The head of the cells, where the next search begins: what each operation leaves.

use std::collections::HashSet;

use kvcache_manager::Mode;

use crate::manager::run::Run;
use crate::manager::script::{End, Operation};

pub struct Before {
    live: HashSet<usize>,
    head: usize,
    ids: usize,
}

impl Run {
    pub fn before(&self) -> Before {
        Before { live: self.live(), head: self.manager.stats().head, ids: self.ids.len() }
    }

    /// Compares the head of the cells with the specification's, where it says what it is.
    pub fn check_head(&self, operation: &Operation, before: &Before) {
        if self.cache.mode != Mode::Cells || before.ids == 0 {
            return;
        }
        let (live, head) = (self.live(), self.manager.stats().head);
        let freed = before.live.difference(&live).min().copied();
        let lowered = freed.map_or(before.head, |freed| freed.min(before.head));
        let expected = match operation {
            Operation::Create { .. } | Operation::Update | Operation::Stale(_) | Operation::Compact(_) => before.head,
            Operation::Free(_) | Operation::Keep(_) | Operation::Rm(..) | Operation::Cut(..) => lowered,
            // Where a load finds cells is not said.
            Operation::Copy(..) | Operation::Reload(..) => return,
            // Those that are lost are freed.
            Operation::FailUpdate(_) | Operation::Step(_, End::Fail(_)) if !self.done => lowered,
            _ if !self.done => before.head,
            Operation::FailUpdate(_) => before.head,
            Operation::Fork(_) if self.model.seqs.last().is_some_and(|fork| !fork.rows.is_empty()) => 0,
            Operation::Add(_, _, delta) if *delta != 0 => freed.unwrap_or(0),
            Operation::Defrag(None) => live.len() % self.cache.max_t,
            Operation::Step(rows, _) if !rows.is_empty() && self.cache.defrag_threshold.is_none() => {
                // The window may have taken rows that the step has written.
                let written = self.written.clone();
                let end = written.iter().max().map_or(before.head, |last| (last + 1) % self.cache.max_t);
                let freed = before.live.iter().chain(&written).filter(|cell| !live.contains(cell)).min();
                freed.map_or(end, |&freed| freed.min(end))
            }
            // Not said.
            _ => return,
        };
        assert_eq!(head, expected, "the head after {operation:?}, which was {}", before.head);
    }
}
