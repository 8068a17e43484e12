//! A bit set of busy cells that is searched by words; and the zeros that it and other arrays of a cache begin with.

use std::ops::Range;

use crate::error::Error;

const WORD: usize = u64::BITS as usize;

/// So many zeros, for arrays as long as a cache has pages or slots. `vec!` gets zeroed memory from the system, so what
/// is never used costs nothing; but it aborts where there is no memory, so the memory is reserved once before.
pub(crate) fn zeros<T: bytemuck::Zeroable + Clone>(len: usize) -> Result<Vec<T>, Error> {
    Vec::<T>::new().try_reserve_exact(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<T>() })?;
    Ok(vec![T::zeroed(); len])
}

/// The busy cells among a number of cells. Memory that was never written is not touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bits {
    /// A bit per cell, 1 if busy. The bits of the last word from `len` on are 0.
    words: Vec<u64>,
    len: usize,
    count: usize,
    end: usize,
}

impl Bits {
    /// So many free cells.
    pub(crate) fn new(len: usize) -> Result<Self, Error> {
        Ok(Self { words: zeros(len.div_ceil(WORD))?, len, count: 0, end: 0 })
    }

    /// The cells that are true.
    pub(crate) fn of(busy: &[bool]) -> Self {
        let word = |cells: &[bool]| cells.iter().rev().fold(0, |word, &busy| word << 1 | u64::from(busy));
        let count = busy.iter().filter(|&&busy| busy).count();
        let end = busy.iter().rposition(|&busy| busy).map_or(0, |last| last + 1);
        Self { words: busy.chunks(WORD).map(word).collect(), len: busy.len(), count, end }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The cell after the last busy one; 0 without one.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    pub(crate) fn is_busy(&self, cell: usize) -> bool {
        self.words[cell / WORD] >> (cell % WORD) & 1 == 1
    }

    /// Makes all cells of a range busy.
    pub(crate) fn set(&mut self, range: Range<usize>) {
        debug_assert!(range.end <= self.len);
        for (i, mask) in masks(&range) {
            self.count += (mask & !self.words[i]).count_ones() as usize;
            self.words[i] |= mask;
        }
        if !range.is_empty() {
            self.end = self.end.max(range.end);
        }
    }

    /// Frees all cells of a range.
    pub(crate) fn clear(&mut self, range: Range<usize>) {
        debug_assert!(range.end <= self.len);
        for (i, mask) in masks(&range) {
            self.count -= (mask & self.words[i]).count_ones() as usize;
            self.words[i] &= !mask;
        }
        if range.contains(&self.end.wrapping_sub(1)) {
            self.end = self.last_busy(0..range.start).map_or(0, |cell| cell + 1);
        }
    }

    pub(crate) fn next_busy(&self, range: Range<usize>) -> Option<usize> {
        self.first(range, 0)
    }

    pub(crate) fn next_free(&self, range: Range<usize>) -> Option<usize> {
        self.first(range, u64::MAX)
    }

    pub(crate) fn last_busy(&self, range: Range<usize>) -> Option<usize> {
        self.last(range, 0)
    }

    pub(crate) fn last_free(&self, range: Range<usize>) -> Option<usize> {
        self.last(range, u64::MAX)
    }

    /// The first cell of a range whose bit is 1 after the exclusive or with `flip`.
    fn first(&self, range: Range<usize>, flip: u64) -> Option<usize> {
        let mut words = masks(&range).map(|(i, mask)| (i, (self.words[i] ^ flip) & mask));
        words.find(|&(_, word)| word != 0).map(|(i, word)| i * WORD + word.trailing_zeros() as usize)
    }

    /// The last cell of a range whose bit is 1 after the exclusive or with `flip`.
    fn last(&self, range: Range<usize>, flip: u64) -> Option<usize> {
        let mut words = masks(&range).rev().map(|(i, mask)| (i, (self.words[i] ^ flip) & mask));
        words.find(|&(_, word)| word != 0).map(|(i, word)| i * WORD + word.ilog2() as usize)
    }

    /// The runs of free cells in a range, in ascending order.
    pub(crate) fn free_runs(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let Range { start: mut at, end } = range;
        std::iter::from_fn(move || {
            let start = self.next_free(at..end)?;
            at = self.next_busy(start..end).unwrap_or(end);
            Some(start..at)
        })
    }

    /// The length of the longest run of free cells. Looks at every word up to the last busy cell.
    pub(crate) fn largest_free_run(&self) -> usize {
        let behind = self.len - self.end;
        self.free_runs(0..self.end).map(|run| run.len()).fold(behind, usize::max)
    }

    /// The first cell not before `from` at which `n` free cells begin. Each word takes the same few instructions,
    /// however many runs it has.
    pub(crate) fn first_fit(&self, from: usize, n: usize) -> Option<usize> {
        let last_start = self.len.checked_sub(n)?;
        if from > last_start {
            return None;
        }
        if n == 0 {
            return Some(from);
        }
        // Cells of the first word before `from` count as busy.
        let mut before = low_bits(from % WORD);
        // Free cells right before the word.
        let mut run = 0;
        for (i, &word) in self.words.iter().enumerate().skip(from / WORD) {
            let busy = word | std::mem::take(&mut before);
            let free_below = busy.trailing_zeros() as usize;
            let start = if run + free_below >= n {
                Some(i * WORD - run)
            } else {
                let starts = if n < WORD { starts_of_ones(!busy, n) } else { 0 };
                (starts != 0).then(|| i * WORD + starts.trailing_zeros() as usize)
            };
            if start.is_some() {
                // The bits from `len` on look free.
                return start.filter(|&start| start <= last_start);
            }
            run = if busy == 0 { run + WORD } else { busy.leading_zeros() as usize };
        }
        None
    }
}

/// The lowest `n` bits, n < 64.
fn low_bits(n: usize) -> u64 {
    (1 << n) - 1
}

/// The words of a range of cells, each with the mask of the cells that are in the range.
fn masks(range: &Range<usize>) -> impl DoubleEndedIterator<Item = (usize, u64)> + use<> {
    let Range { start, end } = *range;
    let words = if start < end { start / WORD..end.div_ceil(WORD) } else { 0..0 };
    words.map(move |i| {
        let before = low_bits(start.saturating_sub(i * WORD).min(WORD - 1));
        let behind = (end - i * WORD).min(WORD);
        (i, u64::MAX >> (WORD - behind) & !before)
    })
}

/// The bits of a word at which `n` ones in a row begin, 0 < n < 64.
fn starts_of_ones(word: u64, n: usize) -> u64 {
    // `starts`: where `ones` ones begin.
    let (mut starts, mut ones) = (word, 1);
    while ones < n {
        let step = ones.min(n - ones);
        starts &= starts >> step;
        ones += step;
    }
    starts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lengths around words, and ranges in them that are set (true) or cleared.
    fn scripts() -> impl Strategy<Value = (usize, Vec<(bool, Range<usize>)>)> {
        let lens = prop_oneof![0_usize..5, 62_usize..67, 126_usize..131, 0_usize..300];
        lens.prop_flat_map(|len| {
            let range = (0..=len, 0..=len).prop_map(|(a, b)| a.min(b)..a.max(b));
            (Just(len), proptest::collection::vec((any::<bool>(), range), 0..12))
        })
    }

    fn run(len: usize, script: &[(bool, Range<usize>)]) -> (Bits, Vec<bool>) {
        let (mut bits, mut naive) = (Bits::new(len).unwrap(), vec![false; len]);
        for (busy, range) in script {
            if *busy {
                bits.set(range.clone())
            } else {
                bits.clear(range.clone())
            }
            naive[range.clone()].fill(*busy);
        }
        (bits, naive)
    }

    fn runs(naive: &[bool], of: bool) -> Vec<Range<usize>> {
        let chunks = naive.chunk_by(|a, b| a == b);
        let mut start = 0;
        chunks
            .filter_map(|chunk| {
                start += chunk.len();
                (chunk[0] == of).then_some(start - chunk.len()..start)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_vector_of_bools((len, script) in scripts(), a in 0_usize..300, b in 0_usize..300) {
            let (bits, naive) = run(len, &script);
            let (a, b) = (a.min(len), b.min(len));
            prop_assert_eq!(bits.len(), len);
            prop_assert!((0..len).map(|cell| bits.is_busy(cell)).eq(naive.iter().copied()));
            prop_assert_eq!(bits.count(), naive.iter().filter(|&&busy| busy).count());
            prop_assert_eq!(bits.end(), naive.iter().rposition(|&busy| busy).map_or(0, |last| last + 1));
            let range = naive.get(a..b).unwrap_or_default();
            prop_assert_eq!(bits.next_busy(a..b), range.iter().position(|&busy| busy).map(|i| a + i));
            prop_assert_eq!(bits.next_free(a..b), range.iter().position(|&busy| !busy).map(|i| a + i));
            prop_assert_eq!(bits.last_busy(a..b), range.iter().rposition(|&busy| busy).map(|i| a + i));
            prop_assert_eq!(bits.last_free(a..b), range.iter().rposition(|&busy| !busy).map(|i| a + i));
            prop_assert_eq!(bits.free_runs(0..len).collect::<Vec<_>>(), runs(&naive, false));
            let longest = runs(&naive, false).iter().map(|run| run.len()).max();
            prop_assert_eq!(bits.largest_free_run(), longest.unwrap_or(0));
            prop_assert_eq!(bits, Bits::of(&naive));
        }

        #[test]
        fn the_first_fit_is_the_first((len, script) in scripts(), from in 0_usize..310, n in 0_usize..140) {
            let (bits, naive) = run(len, &script);
            let fits = |&at: &usize| naive.get(at..at + n).is_some_and(|cells| cells.iter().all(|&busy| !busy));
            prop_assert_eq!(bits.first_fit(from, n), (from..=len).find(fits));
        }
    }

    #[test]
    fn more_cells_than_memory() {
        assert!(matches!(Bits::new(usize::MAX), Err(Error::OutOfMemory { .. })));
    }
}
