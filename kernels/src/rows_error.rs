//! Why rows of a cache cannot be moved, or their keys cannot be rotated.

use kvcache_schema::ElementType;
use thiserror::Error;

use crate::rotary::RopeError;

/// Why rows cannot be moved, or their keys cannot be rotated.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum RowsError {
    /// Types that no `quant_bit` has.
    #[error("no quant_bit has cache {t2} with scale {}", .t3.map_or("none", ElementType::name))]
    Types {
        /// The type of `cache`.
        t2: ElementType,
        /// The type of `scale`, with quantization.
        t3: Option<ElementType>,
    },
    /// Groups that do not divide a head, or that share bytes.
    #[error("quant_group is {group}, expected a divisor of head_dim {head_dim}, even for int4")]
    QuantGroup {
        /// The attribute `quant_group`.
        group: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// A tensor whose size in bytes does not fit in a `usize`.
    #[error("the size of {tensor} with shape {shape:?} overflows")]
    SizeOverflow {
        /// `cache` or `scale`.
        tensor: &'static str,
        /// The tensor's shape.
        shape: [usize; 5],
    },
    /// Memory of another length than what it should hold.
    #[error("{memory} has {got} bytes, expected {expected}")]
    Length {
        /// `cache`, `scale`, `rows` or `keys`.
        memory: &'static str,
        /// The length that it should have.
        expected: usize,
        /// The length that it has.
        got: usize,
    },
    /// Slots outside the cache.
    #[error("{len} slots from slot {start} are not inside a cache of {max_t} slots")]
    Slots {
        /// The first slot.
        start: usize,
        /// The number of slots.
        len: usize,
        /// Slots of the cache.
        max_t: usize,
    },
    /// A layer that the cache does not have.
    #[error("layer {layer} is not one of {num_layer}")]
    Layer {
        /// The layer.
        layer: usize,
        /// Layers of the cache.
        num_layer: usize,
    },
    /// Memory that is not aligned for its type.
    #[error("{memory} is at address {address:#x}, expected a multiple of {expected}")]
    Misaligned {
        /// `cache` or `scale`.
        memory: &'static str,
        /// Its address.
        address: usize,
        /// The alignment of its type.
        expected: usize,
    },
    /// Keys of a type in which a rotated key has no value: int8 and float8 without scales.
    #[error("keys of type {t2} without scales cannot be rotated")]
    KeyType {
        /// The type of `cache`.
        t2: ElementType,
    },
    /// Rotations of which two name the same slot.
    #[error("two rotations have slot {slot}, expected one at most")]
    RotatedTwice {
        /// The first slot that two have.
        slot: usize,
    },
    /// A rope that does not fit the heads.
    #[error(transparent)]
    Rope(#[from] RopeError),
}
