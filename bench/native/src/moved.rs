//! What a loop without arithmetic has moved, for the driver to compare with what the case asks for.

/// Bytes that were read and written, and a sum of what was read.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// The sum, modulo 65536, of all that was read as 16-bit numbers.
    pub sum: u64,
}

impl Moved {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = (self.sum + other.sum) % (1 << 16);
        Self { read: self.read + other.read, written: self.written + other.written, sum }
    }
}
