//! A call of either `KeyValueCache`, and the plan of what it stores and loads: the two differ in their rules and in
//! this plan alone.

use kvcache_schema::ElementType;

use crate::case::Types;
use crate::oracle::decisions::Behavior;
use crate::read::CaseInputs;
use crate::tensor::Tensor;

/// A call of the operator with attributes `A` and inputs `I`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are what a call is given")]
pub struct Call<'a, A, I> {
    pub types: Types,
    pub attributes: &'a A,
    pub inputs: &'a I,
    pub cache: &'a Tensor,
    pub scale: Option<&'a Tensor>,
}

/// The attributes that matter to both operators.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are the operators' attributes")]
pub struct SharedAttributes {
    pub num_layer: i64,
    pub layer_idx: i64,
    pub quant_bit: i64,
    pub quant_type: i64,
    pub quant_group: i64,
    pub num_repeat: i64,
    /// `None` in static batching.
    pub cache_mode: Option<i64>,
}

/// The inputs of one operator whose attributes are `A`: what the oracle needs to know of it.
pub trait Inputs<A>: CaseInputs<A> + Sized + Clone {
    /// The attributes that both operators have.
    fn shared(attributes: &A) -> SharedAttributes;

    /// The tokens of the longest sequence behind the call, as far as its shapes and indices say.
    fn kvlen(&self) -> i64;

    /// The kinds of error of the rules that a call breaks: those of the first stage that has any. None for a legal
    /// call.
    fn broken_rules(call: &Call<'_, A, Self>) -> Vec<&'static str>;

    /// What a legal call does.
    fn plan(call: &Call<'_, A, Self>, behavior: &Behavior) -> Plan;
}

#[derive(Debug, Clone)]
pub struct Plan {
    /// For each sequence, its current tokens and all its tokens.
    pub(super) sequences: Vec<Sequence>,
    /// Whether a row of the inputs or outputs was left out, because they do not have it.
    pub(super) rows_outside: bool,
    pub(super) output_shape: Vec<usize>,
    /// Cache heads (H), and their elements (Dh).
    pub(super) num_heads: usize,
    pub(super) head_dim: usize,
    pub(super) cache: Heads,
    pub(super) scale: Heads,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    /// The rows of its current tokens in `current_key` and `current_value`, and where each is stored.
    pub(super) stores: Vec<(usize, Place)>,
    pub(super) loads: Vec<Load>,
}

/// A token of the outputs: its row there, where it is loaded from, and its row in `current_key` and `current_value` if
/// it is a current one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) row: usize,
    pub(super) place: Place,
    pub(super) current: Option<usize>,
}

/// A slot of the cache: in static batching its sequence and position, in dynamic batching 0 and its number. It may lie
/// outside of the cache if the call is not planned as the specification says.
pub(super) type Place = [i64; 2];

/// The heads of `cache` or `scale` in the order of memory: how many there are along the axes of sequences, slots,
/// layers, keys and values, and heads, and how far neighbors are from each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) lens: [usize; 5],
    strides: [usize; 5],
}

impl Heads {
    /// The numbering of heads by these axes, the outermost first: which of the five it is, and how many there are.
    pub(super) fn new(axes: impl DoubleEndedIterator<Item = (usize, usize)>) -> Self {
        let (mut heads, mut stride) = (Self { lens: [1; 5], strides: [0; 5] }, 1);
        for (axis, len) in axes.rev() {
            (heads.lens[axis], heads.strides[axis]) = (len, stride);
            stride *= len;
        }
        heads
    }

    /// The numbering of static scales of this shape: layers, keys and values, heads, where an axis of 1 is broadcast,
    /// and those of all slots.
    pub(super) fn of_static_scales(shape: [usize; 3], cache: &Self) -> Self {
        let own = Self::new([2, 3, 4].into_iter().zip(shape));
        let strides = std::array::from_fn(|axis| if own.lens[axis] == 1 { 0 } else { own.strides[axis] });
        Self { lens: cache.lens, strides }
    }

    pub(super) fn contains(&self, place: Place) -> bool {
        place.iter().zip(self.lens).all(|(&index, len)| usize::try_from(index).is_ok_and(|index| index < len))
    }

    /// The number of a head. It is one of another place, or none, if the place is not in the cache.
    pub(super) fn number(&self, [sequence, slot]: Place, layer: usize, kv: usize, h: usize) -> Option<usize> {
        let index = [sequence.into(), slot.into(), layer as i128, kv as i128, h as i128];
        let number: i128 = index.iter().zip(self.strides).map(|(index, stride)| index * stride as i128).sum();
        usize::try_from(number).ok().filter(|&number| number < self.lens.iter().product())
    }
}

/// The values of a tensor of indices; none if it is of another type.
pub(crate) fn indices(tensor: &Tensor) -> Vec<i64> {
    match tensor.element() {
        ElementType::Int64 => tensor.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        _ => Vec::new(),
    }
}

/// The first of them; 0 if there is none.
pub(crate) fn number(tensor: &Tensor) -> i64 {
    indices(tensor).first().copied().unwrap_or_default()
}
