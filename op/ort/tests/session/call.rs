//! Calls of a paged cache by two sequences, for a session and for the operator itself.

use std::fmt::Debug;

use kvcache_op::{Attributes, Element, IndexInputs, Inputs};
use ndarray::{Array, Array2, Array3, Dimension, array};
use ort::session::SessionInputValue;
use ort::value::{PrimitiveTensorElementType, TensorRef};

pub const NUM_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const MAX_T: usize = 24;

/// Two sequences that start together, continue together, and of which then one continues: `seqlen` and `start_pos`.
pub const STEPS: [([i64; 2], [i64; 2]); 3] = [([5, 3], [0, 0]), ([1, 1], [5, 3]), ([2, 0], [6, 4])];

/// The second layer of a paged cache in layout (L, 2, H, MaxT, Dh).
pub fn attributes() -> Attributes {
    Attributes {
        num_layer: 2,
        layer_idx: 1,
        num_repeat: 3,
        cache_mode: 1,
        cache_layout: 3,
        page_size: 4,
        ..Attributes::default()
    }
}

/// A type that both the operator and a session take.
pub trait Number: Element + PrimitiveTensorElementType + Debug + 'static {}

impl<T: Element + PrimitiveTensorElementType + Debug + 'static> Number for T {}

/// What a call gets besides cache and scale.
pub struct Call<T> {
    current_key: Array3<T>,
    current_value: Array3<T>,
    seqstarts: [i64; 3],
    kvstarts: [i64; 3],
    cachestarts: Array2<i64>,
    start_pos: [i64; 2],
    max_seqlen: i64,
    max_kvlen: i64,
}

impl<T: Number> Call<T> {
    /// A call of sequences with so many new and past tokens, whose numbers are made by `number`.
    pub fn new((seqlen, start_pos): ([i64; 2], [i64; 2]), number: impl Fn(f32) -> T) -> Self {
        let kvlen = [start_pos[0] + seqlen[0], start_pos[1] + seqlen[1]];
        let starts = |[a, b]: [i64; 2]| [0, a, a + b];
        let tokens = (seqlen[0] + seqlen[1]) as usize;
        let numbers = |phase: i64| {
            let phase = (phase + start_pos[0] * 1000) as usize;
            Array3::from_shape_fn((tokens, NUM_HEADS, HEAD_DIM), |(t, h, d)| {
                number(((phase + t * 97 + h * 31 + d) as f32).sin() * 4.0)
            })
        };
        Self {
            current_key: numbers(0),
            current_value: numbers(500),
            seqstarts: starts(seqlen),
            kvstarts: starts(kvlen),
            cachestarts: array![[20, 3], [12, -1]],
            start_pos,
            max_seqlen: seqlen[0].max(seqlen[1]),
            max_kvlen: kvlen[0].max(kvlen[1]),
        }
    }

    /// The call with one token too many in the second sequence.
    pub fn broken(self) -> Self {
        let [zero, first, all] = self.kvstarts;
        Self { kvstarts: [zero, first, all + 1], ..self }
    }

    /// For the operator itself.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            current_key: (&self.current_key).into(),
            current_value: (&self.current_value).into(),
            indices: IndexInputs {
                seqstarts: self.seqstarts.as_slice().into(),
                kvstarts: self.kvstarts.as_slice().into(),
                cachestarts: (&self.cachestarts).into(),
                start_pos: self.start_pos.as_slice().into(),
                max_seqlen: (&self.max_seqlen).into(),
                max_kvlen: (&self.max_kvlen).into(),
            },
        }
    }

    /// For a session.
    pub fn values(&self) -> ort::Result<Vec<(&'static str, SessionInputValue<'_>)>> {
        let scalar = <[usize; 0]>::default();
        Ok(vec![
            ("current_key", of_array(&self.current_key)?),
            ("current_value", of_array(&self.current_value)?),
            ("seqstarts", value(&[3], &self.seqstarts)?),
            ("kvstarts", value(&[3], &self.kvstarts)?),
            ("cachestarts", of_array(&self.cachestarts)?),
            ("start_pos", value(&[2], &self.start_pos)?),
            ("max_seqlen", value(&scalar, std::slice::from_ref(&self.max_seqlen))?),
            ("max_kvlen", value(&scalar, std::slice::from_ref(&self.max_kvlen))?),
        ])
    }
}

fn of_array<T: Number, D: Dimension>(array: &Array<T, D>) -> ort::Result<SessionInputValue<'_>> {
    value(array.shape(), array.as_slice().expect("an array in standard layout"))
}

fn value<'a, T: Number>(shape: &[usize], data: &'a [T]) -> ort::Result<SessionInputValue<'a>> {
    Ok(TensorRef::from_array_view((shape.to_vec(), data))?.into())
}
