//! How `cachestarts` addresses the cache, and the codes of such choices.

use crate::{CacheLayout, StaticCacheLayout};

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
}

/// The codes of what an attribute chooses.
macro_rules! codes {
    ($($choice:ty: $attribute:literal;)*) => { $(
        impl $choice {
            #[doc = concat!("What has this code in the attribute `", $attribute, "`, if anything has.")]
            pub fn from_code(code: i64) -> Option<Self> {
                Self::ALL.into_iter().find(|choice| choice.code() == code)
            }

            #[doc = concat!("Its code in the attribute `", $attribute, "`.")]
            pub const fn code(self) -> i64 {
                self as i64
            }
        }
    )* };
}

codes! {
    CacheMode: "cache_mode";
    CacheLayout: "cache_layout";
    StaticCacheLayout: "cache_layout";
}
