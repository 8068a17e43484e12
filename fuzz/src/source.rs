//! Input bytes as choices, and numbers that follow from a seed.

use arbitrary::Unstructured;

/// The bytes of an input, of which each choice takes some from the front. Behind their end every choice is the first.
pub struct Source<'a>(Unstructured<'a>);

impl<'a> Source<'a> {
    /// The choices that these bytes make.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.int_in_range(0..=end.saturating_sub(1)).unwrap_or_default()
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Any number.
    pub fn number(&mut self) -> i64 {
        self.0.arbitrary().unwrap_or_default()
    }

    /// Any number, but mostly one that is near `near` or at which something ends.
    pub fn number_near(&mut self, near: i64) -> i64 {
        let step = |source: &mut Self| source.below(7) as i64 - 3;
        match self.below(8) {
            0..3 => near.wrapping_add(self.pick(&[-1, 1, -1, 1, -2, 2, -3, 3])),
            3 => near.wrapping_mul(step(self)),
            4 => self.below(70) as i64 - 2,
            5 => self.pick(&[i64::MIN, i64::MAX, -1, 0]).wrapping_add(step(self)),
            6 => {
                let any = self.below(64);
                (1_i64 << self.pick(&[any, any, 32, 61, 62, 63])).wrapping_add(step(self))
            }
            _ => self.number(),
        }
    }

    /// Numbers that follow from what comes next.
    pub fn random(&mut self) -> Random {
        Random(self.0.arbitrary::<u16>().unwrap_or_default().into())
    }
}

/// A generator of numbers (splitmix64).
#[derive(Debug, Clone, Default)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The numbers of another seed that follows from these.
    pub fn of(&self, parts: &[usize]) -> Self {
        let mut other = self.clone();
        for &part in parts {
            other.0 ^= part as u64;
            other.0 = other.bits();
        }
        other
    }

    /// The next number, of 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 32) as usize % end.max(1)
    }

    /// Brings items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
