//! Where cells are found for new rows, how many of them a step reads, and how they are moved together.

use kvcache_kernels::RowCopy;

use crate::slots::bits::Bits;

/// Searches `n` free cells in a row, first from `head` on, then from 0 on. If `head` is past `used + 2 * n`, with
/// `used` the number of busy cells, it searches from 0 at once: many cells before `head` must be free then.
///
/// Returns the first cell that was found, and the new head: this cell, or the old head without one. There is none
/// exactly if no `n` cells in a row are free. This is llama.cpp's search, without its test of cells one by one.
///
/// ```
/// let busy = [true, true, false, false, true, false, false, false];
/// assert_eq!(kvcache_manager::find_slot(&busy, 6, 3, 3), (Some(5), 5));
/// assert_eq!(kvcache_manager::find_slot(&busy, 6, 3, 4), (None, 6));
/// ```
pub fn find_slot(busy: &[bool], head: usize, used: usize, n: usize) -> (Option<usize>, usize) {
    find_slot_in(&Bits::of(busy), head, used, n)
}

/// [`find_slot`] in a set of busy cells.
pub(crate) fn find_slot_in(busy: &Bits, head: usize, used: usize, n: usize) -> (Option<usize>, usize) {
    let start = if head > used.saturating_add(n.saturating_mul(2)) { 0 } else { head };
    let slot = busy.first_fit(start, n).or_else(|| busy.first_fit(0, n));
    (slot, slot.unwrap_or(head))
}

/// The number of cells that a step reads, of `size`: those before `used_max`, the cell after the last busy one,
/// rounded up to a multiple of `pad` and at least one `pad`.
///
/// ```
/// assert_eq!(kvcache_manager::n_kv(33, 1024, 32), 64);
/// assert_eq!(kvcache_manager::n_kv(12, 20, 32), 20);
/// ```
pub fn n_kv(used_max: usize, size: usize, pad: usize) -> usize {
    // What overflows is more than the size. Without a pad nothing is rounded.
    used_max.checked_next_multiple_of(pad.max(1)).map_or(size, |padded| padded.max(pad).min(size))
}

/// The share of free cells among those that a step reads; 0 where it reads fewer than 128.
pub fn fragmentation(n_kv: usize, used: usize) -> f64 {
    if n_kv >= 128 { 1.0 - used as f64 / n_kv as f64 } else { 0.0 }
}

/// The copies that bring the busy cells together at the front, or the first `max_moves` of them.
///
/// From the front, each hole of nh cells before cell `busy.count()` takes the last nh busy cells that no hole before it
/// took, in order. No copy reads what another writes, and all destinations are free. A copy is one run of cells, so a
/// hole may take several.
pub(crate) fn defragmentation(busy: &Bits, max_moves: Option<usize>) -> Vec<RowCopy> {
    let max_moves = max_moves.unwrap_or(usize::MAX);
    let used = busy.count();
    let mut copies = Vec::new();
    // Busy cells from here on are taken.
    let mut taken = busy.end();
    for hole in busy.free_runs(0..used) {
        if copies.len() >= max_moves {
            break;
        }
        let first = copies.len();
        let mut dst = hole.end;
        while dst > hole.start {
            // As many cells are busy after `used` as are free before it.
            let Some(last) = busy.last_busy(used..taken) else { break };
            let run = busy.last_free(used..last).map_or(used, |free| free + 1);
            let src = run.max((last + 1).saturating_sub(dst - hole.start));
            let len = last + 1 - src;
            dst -= len;
            taken = src;
            copies.push(RowCopy { src, dst, len });
        }
        copies[first..].reverse();
    }
    copies.truncate(max_moves);
    copies
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specification's loop, word for word.
    fn naive_find_slot(busy: &[bool], mut head: usize, used: usize, n: usize) -> (Option<usize>, usize) {
        let (size, before) = (busy.len(), head);
        if n > size {
            return (None, before);
        }
        if head > used + 2 * n {
            head = 0;
        }
        let mut tested = 0;
        loop {
            if head + n > size {
                tested += size - head;
                head = 0;
                continue;
            }
            match (0..n).find(|i| busy[head + i]) {
                Some(i) => {
                    head += i + 1;
                    tested += i + 1;
                }
                None => return (Some(head), head),
            }
            if tested >= size {
                return (None, before);
            }
        }
    }

    /// The specification's plan, found cell by cell.
    fn naive_defragmentation(busy: &[bool]) -> Vec<RowCopy> {
        let used = busy.iter().filter(|&&busy| busy).count();
        let (mut unmoved, mut copies) = (busy.to_vec(), Vec::<RowCopy>::new());
        let mut hole = 0;
        while hole < used {
            let nh = busy[hole..used].iter().take_while(|&&busy| !busy).count();
            let mut last: Vec<_> = (0..busy.len()).rev().filter(|&cell| unmoved[cell]).take(nh).collect();
            last.reverse();
            for (i, &src) in last.iter().enumerate() {
                unmoved[src] = false;
                match copies.last_mut() {
                    Some(copy) if i > 0 && copy.src + copy.len == src => copy.len += 1,
                    _ => copies.push(RowCopy { src, dst: hole + i, len: 1 }),
                }
            }
            hole += nh.max(1);
        }
        copies
    }

    fn cells() -> impl Strategy<Value = Vec<bool>> {
        let probability = prop_oneof![Just(0.05), Just(0.5), Just(0.95)];
        let runs = (probability, 1_usize..200).prop_flat_map(|(probability, len)| {
            proptest::collection::vec((proptest::bool::weighted(probability), 1_usize..6), 1..=len)
        });
        runs.prop_map(|runs| runs.into_iter().flat_map(|(busy, len)| std::iter::repeat_n(busy, len)).collect())
    }

    #[test]
    fn numbers_near_overflow() {
        assert_eq!(n_kv(usize::MAX, 1024, 32), 1024);
        assert_eq!(n_kv(usize::MAX, usize::MAX, 32), usize::MAX);
        assert_eq!(n_kv(6, 1024, usize::MAX), 1024);
        assert_eq!(n_kv(6, 1024, 0), 6);
        for (head, used, n) in [(usize::MAX, 0, 1), (usize::MAX, usize::MAX, usize::MAX), (0, 0, usize::MAX)] {
            let (slot, _) = find_slot(&[false, true], head, used, n);
            assert_eq!(slot, (n == 1).then_some(0));
        }
    }

    proptest! {
        #[test]
        fn find_slot_is_the_specifications_loop(
            busy in cells(), head in any::<prop::sample::Index>(), used in 0_usize..600, n in 0_usize..150,
        ) {
            // Also larger and smaller ones than there are busy cells.
            let used = if used < 300 { busy.iter().filter(|&&busy| busy).count() } else { used - 300 };
            let head = head.index(busy.len());
            let found = find_slot(&busy, head, used, n);
            prop_assert_eq!(found, naive_find_slot(&busy, head, used, n));
            let hole = n == 0 || busy.windows(n).any(|cells| cells.iter().all(|&busy| !busy));
            prop_assert_eq!(found.0.is_some(), hole);
        }

        #[test]
        fn n_kv_bounds(size in 0_usize..2000, used_max in any::<prop::sample::Index>(), pad in 1_usize..300) {
            let used_max = used_max.index(size + 1);
            let smallest = (1..).map(|pads| pads * pad).find(|&padded| padded >= used_max);
            prop_assert_eq!(n_kv(used_max, size, pad), smallest.unwrap().min(size));
        }

        #[test]
        fn defragmentation_is_the_specifications_plan(busy in cells(), max_moves in 0_usize..40) {
            let all = defragmentation(&Bits::of(&busy), None);
            prop_assert_eq!(&all, &naive_defragmentation(&busy));

            let some = defragmentation(&Bits::of(&busy), Some(max_moves));
            prop_assert_eq!(&some[..], &all[..max_moves.min(all.len())]);
        }
    }
}
