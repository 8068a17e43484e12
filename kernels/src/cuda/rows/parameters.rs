//! The parameters of the kernels, passed by value; `row_parameters.cuh` declares the same for the device.

/// Moves in one launch, at most.
pub(super) const MOST_MOVES: usize = 160;
/// Turns in one launch, at most.
pub(super) const MOST_TURNS: usize = 64;
/// Pairs of elements that are rotated, at most.
pub(super) const MOST_PAIRS: usize = 256;
/// Elements of a quantized head, at most.
pub(super) const MOST_HEAD_DIM: usize = 512;

/// Where the heads of rows lie: an address, and strides in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowPlace {
    /// Head 0 of the keys of layer 0, in slot or row 0.
    pub base: u64,
    /// From one slot or row to the next.
    pub token: i64,
    /// From one layer to the next.
    pub layer: i64,
    /// From keys to values.
    pub kv: i64,
    /// From one head to the next.
    pub head: i64,
}

/// Neighboring rows that are moved.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Move {
    /// The first slot or row that is read.
    pub from: i64,
    /// The first slot or row that is written.
    pub to: i64,
    /// How many.
    pub len: i64,
}

/// The parameter of the kernels that move rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoveParameters {
    /// What is read.
    pub from: RowPlace,
    /// What is written.
    pub to: RowPlace,
    /// Words of a row: 16 bytes each, or one.
    pub words: u64,
    /// Words of a head.
    pub words_per_head: u32,
    /// Heads of a layer's keys.
    pub num_heads: u32,
    /// How many of `moves` there are.
    pub count: u32,
    /// Parts that the rows of all moves are cut into: blocks of their own; 1 where a row that is written is also read, or
    /// written again.
    pub parts: u32,
    /// The moves, one after the other.
    pub moves: [Move; MOST_MOVES],
}

/// Neighboring slots whose keys are rotated.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turn {
    /// The first slot.
    pub slot: i64,
    /// Slots of the turns before this one.
    pub before: u64,
}

/// The parameter of the kernels that rotate keys.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotateParameters {
    /// `cache`.
    pub cache: RowPlace,
    /// `scale`; not accessed without quantization.
    pub scale: RowPlace,
    /// Heads in all slots and layers.
    pub heads: u64,
    /// Layers.
    pub num_layer: u32,
    /// Heads of a layer's keys.
    pub num_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements that share a scale.
    pub group: u32,
    /// Pairs of a head that are rotated.
    pub pairs: u32,
    /// From a pair's first element to its second.
    pub step: u32,
    /// From a pair to the next.
    pub stride: u32,
    /// How many of `turns` there are.
    pub count: u32,
    /// The order of the Hadamard matrix that keys were multiplied by; 1 where they were not.
    pub order: u32,
    /// 0.
    pub unused: u32,
    /// The cosine of each pair's angle.
    pub cos: [f32; MOST_PAIRS],
    /// The sines.
    pub sin: [f32; MOST_PAIRS],
    /// The slots.
    pub turns: [Turn; MOST_TURNS],
}

const _: () = {
    assert!(size_of::<MoveParameters>() == 3944);
    assert!(size_of::<RotateParameters>() == 3200);
};
