//! A quantized matrix in panels of 16 columns.
//!
//! ```text
//! panels (P, B, block_size * 2 * bits bytes): by panel and block, lines of 64 bytes; byte 4 * c + j of line l has
//!     8 bits: the code of column c and k = 4 * l + j of the block
//!     4 bits: in its low nibble this code, in its high nibble the code of k = 4 * (l + lines) + j
//! scales, minima (P, B, 16)
//! ```
//!
//! Columns past N are computed and never stored; codes past K meet an x of 0. Both may have any bytes.

/// Columns of a panel.
pub const COLUMNS: usize = 16;

/// Bytes of a line: four codes of 8 bits, or eight of 4 bits, of each column.
pub(crate) const LINE: usize = 4 * COLUMNS;

/// The sizes of a quantized matrix (N, K): N columns of the product, K elements of a row of x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Columns, at least 1.
    pub n: usize,
    /// Rows, at least 1: the elements of an activation row.
    pub k: usize,
    /// Bits of a code: 4 or 8.
    pub bits: usize,
    /// Codes along K that share a scale: 16 or 32.
    pub block_size: usize,
}

impl MatrixShape {
    /// Panels, the last of which may have fewer than 16 columns.
    pub const fn panels(&self) -> usize {
        self.n.div_ceil(COLUMNS)
    }

    /// Blocks along K, the last of which may have fewer codes.
    pub const fn blocks(&self) -> usize {
        self.k.div_ceil(self.block_size)
    }

    /// Bytes of the codes of a block of a panel.
    pub const fn block_bytes(&self) -> usize {
        self.block_size * COLUMNS * self.bits / 8
    }

    /// Whether every size is one that a matrix can have.
    pub const fn is_valid(&self) -> bool {
        self.n > 0 && self.k > 0 && matches!(self.bits, 4 | 8) && matches!(self.block_size, 16 | 32)
    }

    /// The code of weight 0 where there are no minima: half the number of codes.
    pub(crate) const fn zero_point(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Where the code of a row k and a column is: the byte in `panels`, and how far it is shifted there.
    pub(crate) const fn position(&self, k: usize, column: usize) -> (usize, u32) {
        let (block, i) = (k / self.block_size, k % self.block_size);
        let lines = self.block_bytes() / LINE;
        let line = (column / COLUMNS * self.blocks() + block) * lines + i / 4 % lines;
        (line * LINE + column % COLUMNS * 4 + i % 4, if i / 4 < lines { 0 } else { 4 })
    }

    /// Where the scale of a block and a column is.
    pub(crate) const fn scale_position(&self, block: usize, column: usize) -> usize {
        (column / COLUMNS * self.blocks() + block) * COLUMNS + column % COLUMNS
    }
}

/// A quantized matrix (N, K), in memory of the caller's.
///
/// A weight is `scale * (code - 2^(bits - 1))`, or with minima `scale * code + minimum`; codes are unsigned.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    shape: MatrixShape,
    panels: &'a [u8],
    scales: &'a [f32],
    minima: Option<&'a [f32]>,
}

impl<'a> Matrix<'a> {
    /// A matrix of panels (P, B, [`block_bytes`](MatrixShape::block_bytes)), and scales and minima (P, B, 16), with P
    /// [`panels`](MatrixShape::panels) and B [`blocks`](MatrixShape::blocks).
    ///
    /// # Panics
    /// If the shape is [not valid](MatrixShape::is_valid), or memory has another length. The caller has checked both.
    pub fn new(shape: MatrixShape, panels: &'a [u8], scales: &'a [f32], minima: Option<&'a [f32]>) -> Self {
        assert!(shape.is_valid(), "{shape:?}");
        let blocks = shape.panels().checked_mul(shape.blocks());
        let lens = [shape.block_bytes(), COLUMNS].map(|each| blocks.and_then(|blocks| blocks.checked_mul(each)));
        assert_eq!(lens, [Some(panels.len()), Some(scales.len())], "bytes of panels, scales: {shape:?}");
        assert!(minima.is_none_or(|minima| minima.len() == scales.len()), "as many minima as scales");
        Self { shape, panels, scales, minima }
    }

    /// Its sizes.
    pub fn shape(&self) -> &MatrixShape {
        &self.shape
    }

    /// Its codes, (P, B, `block_bytes`).
    pub fn panels(&self) -> &'a [u8] {
        self.panels
    }

    /// Its scales, (P, B, 16).
    pub fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// Its minima, (P, B, 16).
    pub fn minima(&self) -> Option<&'a [f32]> {
        self.minima
    }

    /// What a code counts as: the code less this.
    pub(crate) fn zero_point(&self) -> i32 {
        if self.minima.is_some() { 0 } else { self.shape.zero_point() }
    }

    /// The code of a row and a column.
    pub(crate) fn code(&self, k: usize, column: usize) -> u8 {
        let (at, shift) = self.shape.position(k, column);
        self.panels[at] >> shift & if self.shape.bits == 4 { 15 } else { 255 }
    }
}

/// The panels of unsigned codes (N, K), one a byte; 0 past N and K.
///
/// # Panics
/// If the shape is not valid, the codes have another length, or one has more bits.
pub fn pack(shape: &MatrixShape, codes: &[u8]) -> Vec<u8> {
    assert!(
        shape.is_valid() && Some(codes.len()) == shape.n.checked_mul(shape.k),
        "{} codes of {shape:?}",
        codes.len()
    );
    let mut panels = vec![0; shape.panels() * shape.blocks() * shape.block_bytes()];
    for (column, codes) in codes.chunks_exact(shape.k).enumerate() {
        for (k, &code) in codes.iter().enumerate() {
            assert!(shape.bits == 8 || code < 16, "code {code} of 4 bits");
            let (at, shift) = shape.position(k, column);
            panels[at] |= code << shift;
        }
    }
    panels
}

/// Scales or minima (N, B) as a matrix has them, (P, B, 16); 0 past N.
///
/// # Panics
/// If the shape is not valid, or there are not N * B values.
pub fn pack_columns(shape: &MatrixShape, values: &[f32]) -> Vec<f32> {
    let blocks = shape.blocks();
    assert!(shape.is_valid() && Some(values.len()) == shape.n.checked_mul(blocks), "{} of {shape:?}", values.len());
    let mut packed = vec![0.0; shape.panels() * blocks * COLUMNS];
    for (i, &value) in values.iter().enumerate() {
        packed[shape.scale_position(i % blocks, i / blocks)] = value;
    }
    packed
}
