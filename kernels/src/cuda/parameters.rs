//! The parameters of the kernels, passed by value; `parameters.cuh` declares the same for the device.

/// A divisor, with the constants that replace the division: for n < 2^31 the quotient is
/// `(n + (n * magic >> 32)) >> shift`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divisor {
    /// The number itself, at least 1.
    pub value: u32,
    /// `floor(2^32 * (2^shift - value) / value) + 1`.
    pub magic: u32,
    /// The number of bits of `value - 1`.
    pub shift: u32,
}

/// Strides of `cache` or `scale`, in elements. The layer is part of the base address.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strides {
    /// From one slot to the next.
    pub token: i64,
    /// From keys to values.
    pub kv: i64,
    /// From one head to the next.
    pub head: i64,
}

/// The one parameter of the kernels that store and load. `parameters.cuh` mirrors it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// `current_key` and `current_value`: T1, shape (rows of the store, H, Dh).
    pub current: [u64; 2],
    /// `key` and `value`: T1, shape (rows of the load, H * `num_repeat`, Dh).
    pub outputs: [u64; 2],
    /// The layer's first element in `cache`.
    pub cache: u64,
    /// The layer's first element in `scale`; not accessed without quantization.
    pub scale: u64,
    /// int64, shape (B + 1).
    pub seqstarts: u64,
    /// int64, shape (B).
    pub start_pos: u64,
    /// int64, shape (B) or (B, MaxP).
    pub cachestarts: u64,
    /// The status word, 64 bits: see [`Status`](super::Status).
    pub status: u64,
    /// Rows of `current_key` for the store, of `key` for the load.
    pub rows: i64,
    /// Slots of the cache.
    pub max_t: i64,
    /// Entries in a row of `cachestarts`; 1 in offset mode.
    pub max_p: i64,
    /// Tokens in a page; the largest int64 in offset mode, which makes a sequence one page.
    pub page_size: i64,
    /// Strides of `cache`.
    pub cache_strides: Strides,
    /// Strides of `scale`; for static scales `token` is 0.
    pub scale_strides: Strides,
    /// Sequences.
    pub batch: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Output heads per cache head.
    pub num_repeat: u32,
    /// Elements that share a scale; 1 without quantization.
    pub group: u32,
    /// Units that a warp moves between two look-ups of slots: a multiple of 32 that spans at most 32 tokens.
    pub round: u32,
    /// Not 0 if device lengths that add up to less than `rows` are reported.
    pub exact_rows: u32,
    /// Units of work in a token's keys. Each lane moves the unit of the token's values at the same place, too.
    pub units_per_token: Divisor,
    /// Units of work in a head.
    pub units_per_head: Divisor,
    /// Units of work in a group; 1 where a unit is a group or there is none.
    pub units_per_group: Divisor,
    /// The order of the Hadamard matrix that keys are multiplied by; 1 where they are not.
    pub rotation_order: u32,
}

/// The parameter of the kernel that makes the index inputs of sequences that are alike. `parameters.cuh` mirrors it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexParameters {
    /// int64, shape (B + 1); written.
    pub seqstarts: u64,
    /// int64, shape (B); written.
    pub start_pos: u64,
    /// int64, shape (B); written.
    pub cachestarts: u64,
    /// Sequences.
    pub batch: u64,
    /// The current tokens of each sequence.
    pub seqlen: i64,
    /// The position of each sequence's first current token.
    pub past: i64,
    /// Slots from a sequence to the next.
    pub stride: i64,
}

const _: () = {
    assert!(size_of::<Parameters>() == 224);
    assert!(size_of::<IndexParameters>() == 56);
};

impl Divisor {
    /// Division by `value`, which is at least 1 and less than 2^31.
    pub fn new(value: u32) -> Self {
        let shift = value.next_power_of_two().trailing_zeros();
        let rest = (1u64 << shift) - u64::from(value);
        // Below 2^32, since rest < value.
        let magic = ((rest << 32) / u64::from(value) + 1) as u32;
        Self { value, magic, shift }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        let edges = |n: u32| [n.saturating_sub(1), n, n.saturating_add(1)];
        let values: Vec<u32> =
            (1..40).chain((5..31).flat_map(|bit| edges(1 << bit))).chain([i32::MAX as u32]).collect();
        for &value in values.iter().filter(|&&value| value <= i32::MAX as u32) {
            let Divisor { magic, shift, .. } = Divisor::new(value);
            let multiples = (0..200).map(|i| (u64::from(value) * i * i / 3).min(i32::MAX as u64) as u32);
            for n in multiples.flat_map(edges).chain(values.iter().copied()).filter(|&n| n <= i32::MAX as u32) {
                let quotient = (u64::from(n) + ((u64::from(n) * u64::from(magic)) >> 32)) >> shift;
                assert_eq!(quotient, u64::from(n / value), "{n} / {value}");
            }
        }
    }
}
