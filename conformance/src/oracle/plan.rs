//! What a legal call does, slot by slot. Dynamic and static batching differ in their rules and in this plan alone.

/// What a call does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// For each sequence, its current tokens and all its tokens.
    pub sequences: Vec<Sequence>,
    /// Whether a row of the inputs or outputs was left out, because they do not have it.
    pub rows_outside: bool,
    /// The shape of `key` and `value`.
    pub output_shape: Vec<usize>,
    /// Cache heads (H).
    pub num_heads: usize,
    /// Elements of a head (Dh).
    pub head_dim: usize,
    /// The heads of `cache`.
    pub cache: Rows,
    /// The heads of `scale`.
    pub scale: Rows,
}

/// What a sequence stores and loads.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    /// The rows of its current tokens in `current_key` and `current_value`, and where each is stored.
    pub stores: Vec<(usize, Place)>,
    /// All its tokens.
    pub loads: Vec<Load>,
}

/// A token of the outputs.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Its row in `key` and `value`.
    pub row: usize,
    /// Where it is loaded from.
    pub place: Place,
    /// Its row in `current_key` and `current_value`, if it is a current token.
    pub current: Option<usize>,
}

/// A slot of the cache. It may lie outside of it if the call is not planned as the specification says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The sequence of a static batch; 0 in dynamic batching.
    pub sequence: i64,
    /// The slot; in static batching the position.
    pub slot: i64,
}

/// One axis of `cache` or `scale`: how many there are, and how many heads lie between neighbors.
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "described above")]
pub struct Axis {
    pub len: usize,
    pub stride: usize,
}

/// How the heads of `cache` or `scale` are numbered: by their order in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rows {
    /// The sequences of static batching (MaxB); in dynamic batching there is one.
    pub sequence: Axis,
    /// Slots (MaxT), or positions (MaxS).
    pub slot: Axis,
    /// Layers (L).
    pub layer: Axis,
    /// Key, then value (2).
    pub kv: Axis,
    /// Cache heads (H).
    pub head: Axis,
}

impl Rows {
    /// The numbering of heads by these axes, the outermost first: how many there are along each, and which one it is.
    pub(super) fn of(axes: impl DoubleEndedIterator<Item = (usize, fn(&mut Self) -> &mut Axis)>) -> Self {
        let mut rows = Self { sequence: Axis { len: 1, stride: 0 }, ..Self::default() };
        let mut stride = 1;
        for (len, axis) in axes.rev() {
            *axis(&mut rows) = Axis { len, stride };
            stride *= len;
        }
        rows
    }

    /// The number of heads.
    pub fn count(&self) -> usize {
        [self.sequence, self.slot, self.layer, self.kv, self.head].iter().map(|axis| axis.len).product()
    }

    /// Whether the place is in the cache.
    pub fn contains(&self, place: Place) -> bool {
        let inside = |index: i64, axis: Axis| usize::try_from(index).is_ok_and(|index| index < axis.len);
        inside(place.sequence, self.sequence) && inside(place.slot, self.slot)
    }

    /// The number of a head. It is one of another place, or of none, if the place is not in the cache.
    pub fn row(&self, place: Place, layer: usize, kv: usize, h: usize) -> i128 {
        let step = |index: i64, axis: Axis| i128::from(index) * axis.stride as i128;
        let inner = layer * self.layer.stride + kv * self.kv.stride + h * self.head.stride;
        step(place.sequence, self.sequence) + step(place.slot, self.slot) + inner as i128
    }
}
