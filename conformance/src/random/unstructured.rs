//! Choices: numbers from a seed, or the bytes of a fuzzer's input one after the other.

/// Where choices come from. The same seed, or the same bytes, always make the same choices, on every machine and with
/// every version of every library. (`arbitrary::Unstructured` is of bytes alone.)
#[derive(Debug, Clone)]
pub struct Unstructured(Source);

#[derive(Debug, Clone)]
enum Source {
    Seed(u64),
    /// The bytes, from the last one to the first.
    Bytes(Vec<u8>),
}

impl Unstructured {
    /// The choices of a seed.
    pub const fn seed(seed: u64) -> Self {
        Self(Source::Seed(seed))
    }

    /// The choices that bytes make: each takes as many as it needs from the front. Behind their end each is the first.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self(Source::Bytes(bytes.iter().rev().copied().collect()))
    }

    pub(super) fn case(seed: u64, case: usize) -> Self {
        Self::seed(Self::seed(seed).next() ^ (case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Whether no byte is left. A seed has no end.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Bytes(bytes) if bytes.is_empty())
    }

    /// Other choices, of a seed that this one gives: for the many numbers of a tensor, which are not worth bytes.
    pub fn fork(&mut self) -> Self {
        Self::seed(match &self.0 {
            Source::Seed(_) => self.next(),
            Source::Bytes(_) => self.below(1 << 16) as u64,
        })
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "there is no end")]
    pub fn next(&mut self) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Source::Bytes(bytes) => (0..8).fold(0, |number, _| number << 8 | u64::from(bytes.pop().unwrap_or(0))),
        }
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let end = end.max(1);
        let Source::Bytes(bytes) = &mut self.0 else { return (self.next() % end as u64) as usize };
        let (mut number, mut most) = (0, end - 1);
        while most > 0 {
            number = number << 8 | usize::from(bytes.pop().unwrap_or(0));
            most >>= 8;
        }
        number % end
    }

    /// A number from `first` to `last`.
    pub fn within(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Whether something happens that happens once in that many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Brings items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i + 1)));
    }

    /// A number from -1 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}
