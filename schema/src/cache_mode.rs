//! How `cachestarts` addresses the cache.

/// Attribute `cache_mode`: what `cachestarts` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i64)]
pub enum CacheMode {
    /// `cachestarts[b]` is the slot of sequence b's first token; the others follow.
    Offset = 0,
    /// `cachestarts[b, p]` is the slot of the first token of sequence b's page p; the page's others follow.
    Paged = 1,
}

impl CacheMode {
    /// Every mode, by its code.
    pub const ALL: [Self; 2] = [Self::Offset, Self::Paged];

    /// The mode with this code in the attribute `cache_mode`, if there is one.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.code() == code)
    }

    /// The code in the attribute `cache_mode`.
    pub const fn code(self) -> i64 {
        self as i64
    }
}
