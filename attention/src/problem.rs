//! One call of an attention operator, already checked: the input of every attention kernel.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use kvcache_kernels::{Indices, Kernel, Stores, Workers};
use kvcache_schema::ElementType;

/// An implementation of attention.
pub trait AttentionKernel: Sync {
    /// The kernel's name, as a user writes it.
    fn name(&self) -> &'static str;

    /// Writes every element of `attn_output`: T1, shape (`seqstarts[B]`, Hq, Dh); and of `mass`, if it is given:
    /// float32, shape (Hq, `kvstarts[B]`), for each query head and key the sum of its probabilities over the queries of
    /// its sequence, in their order. Over a cache, the current tokens have been [stored](AttentionProblem::store).
    ///
    /// # Panics
    /// If `attn_output` is not [`output_bytes`](AttentionProblem::output_bytes) long, or not aligned for T1; if `mass`
    /// is not as long as its shape.
    fn attend(
        &self,
        problem: &AttentionProblem<'_>,
        attn_output: &mut [MaybeUninit<u8>],
        mass: Option<&mut [MaybeUninit<f32>]>,
        workers: &dyn Workers,
    );
}

/// Dimensions, types and masks of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionGeometry {
    /// Sequences (B).
    pub batch: usize,
    /// Query heads (Hq).
    pub num_heads: usize,
    /// Key heads (Hk), a divisor of the query heads: query head h uses key head `h / (Hq / Hk)`.
    pub num_kv_heads: usize,
    /// Elements of a head (Dh).
    pub head_dim: usize,
    /// The type of `query`, of the keys and values, of `attn_mask`, `head_sink` and `attn_output` (T1): float32 or
    /// float16.
    pub t1: ElementType,
    /// Whether queries of one sequence do not see what is after them.
    pub is_causal: bool,
    /// Whether scores are biased by the distance of key and query.
    pub is_alibi: bool,
    /// Sequences without a causal mask, the first ones; at most `batch`.
    pub decoding_batches: usize,
    /// What the products of queries and keys are multiplied with.
    pub scale: f32,
    /// c of `c * tanh(s / c)`, which a scaled product s becomes before all that is added; 0 is none.
    pub softcap: f32,
    /// The keys that a query sees at most, those up to its own; none without a window.
    pub local_window_size: Option<usize>,
}

/// The rows of `query` and the keys of each sequence.
#[derive(Debug, Clone, Copy)]
pub struct AttentionIndices<'a> {
    /// Shape (B + 1): where each sequence starts in `query` and `attn_output`.
    pub seqstarts: &'a [i64],
    /// Shape (B + 1): where each sequence starts in packed keys and values, and among the columns of `attn_mask`.
    pub kvstarts: &'a [i64],
}

/// The rows of one sequence of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaggedRows {
    /// Its rows of `query` and `attn_output`.
    pub queries: Range<usize>,
    /// Its rows of packed keys and values, and its columns of `attn_mask`.
    pub keys: Range<usize>,
}

impl AttentionIndices<'_> {
    /// The rows of sequence `b`, of indices that have been checked.
    pub fn sequence(&self, b: usize) -> RaggedRows {
        let range = |starts: &[i64]| starts[b] as usize..starts[b + 1] as usize;
        RaggedRows { queries: range(self.seqstarts), keys: range(self.kvstarts) }
    }
}

/// Where a call's keys and values are.
#[derive(Debug)]
pub enum Keys<'a> {
    /// `key` and `value`: T1, shape (`kvstarts[B]`, Hk, Dh).
    Packed {
        /// The first elements of both.
        pointers: [*const u8; 2],
        /// The rows of each sequence.
        indices: AttentionIndices<'a>,
    },
    /// In the cache, after these stores.
    Cache(Stores<'a>),
}

/// `attn_mask`: T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), W >= `kvstarts[B]`.
#[derive(Debug, Clone, Copy)]
pub struct Mask {
    /// The first element.
    pub data: *const u8,
    /// Elements in a row (W).
    pub width: usize,
    /// Whether there is a plane for each query head; else all share one.
    pub per_head: bool,
}

/// The memory of what attends.
#[derive(Debug, Clone, Copy)]
pub struct AttentionPointers {
    /// `query`: T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: *const u8,
    /// `attn_mask`, if given.
    pub attn_mask: Option<Mask>,
    /// `head_sink`, if given: T1, shape (Hq).
    pub head_sink: Option<*const u8>,
}

/// One call of an attention operator, already checked: all but its output.
///
/// Every slot of its tokens is inside the cache, and all sizes fit in memory.
#[derive(Debug)]
pub struct AttentionProblem<'a> {
    geometry: AttentionGeometry,
    keys: Keys<'a>,
    pointers: AttentionPointers,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> AttentionProblem<'a> {
    /// A problem that the caller has checked.
    ///
    /// # Safety
    /// - T1 is float32 or float16, `num_kv_heads` is at least 1 and divides `num_heads`.
    /// - The indices obey the rule "Starts" of `MultiHeadAttention`. T1, Hk, Dh and B of the stores, if there are
    ///   any, are the same.
    /// - For the lifetime, each pointer is aligned for T1 and valid for reads of its tensor's shape (for any address
    ///   where the tensor is empty), which is initialized.
    /// - For the lifetime, nobody else writes what the call reads.
    pub unsafe fn assume_checked(geometry: AttentionGeometry, keys: Keys<'a>, pointers: AttentionPointers) -> Self {
        Self { geometry, keys, pointers, memory: PhantomData }
    }

    /// Dimensions, types and masks.
    pub fn geometry(&self) -> &AttentionGeometry {
        &self.geometry
    }

    /// The rows of each sequence.
    pub fn indices(&self) -> AttentionIndices<'a> {
        match &self.keys {
            Keys::Packed { indices, .. } => *indices,
            Keys::Cache(stores) => {
                let &Indices { seqstarts, kvstarts, .. } = stores.indices();
                AttentionIndices { seqstarts, kvstarts }
            }
        }
    }

    /// Where the keys and values are. Access follows the conditions of [`assume_checked`](Self::assume_checked).
    pub fn keys(&self) -> &Keys<'a> {
        &self.keys
    }

    /// The other tensors' memory. Access follows the conditions of [`assume_checked`](Self::assume_checked).
    pub fn pointers(&self) -> AttentionPointers {
        self.pointers
    }

    /// Stores the current tokens into the cache, if there is one.
    pub fn store(&mut self, kernel: &dyn Kernel, workers: &dyn Workers) {
        if let Keys::Cache(stores) = &mut self.keys {
            kernel.store(stores.reborrow(), workers);
        }
    }

    /// Rows of `query` and `attn_output`.
    pub fn total_seqlen(&self) -> usize {
        self.indices().seqstarts[self.geometry.batch] as usize
    }

    /// Rows of packed keys and values.
    pub fn total_kvlen(&self) -> usize {
        self.indices().kvstarts[self.geometry.batch] as usize
    }

    /// The bytes of `attn_output`.
    pub fn output_bytes(&self) -> usize {
        self.total_seqlen() * self.geometry.head_dim * self.geometry.num_heads * self.t1_bytes()
    }

    /// The shape of the attention's mass: (Hq, `kvstarts[B]`).
    pub fn mass_shape(&self) -> [usize; 2] {
        [self.geometry.num_heads, self.total_kvlen()]
    }

    /// Mass of which nobody has had any yet.
    pub(crate) fn zeroed_mass<'m>(&self, mass: &'m mut [MaybeUninit<f32>]) -> &'m mut [f32] {
        assert_eq!(mass.len(), self.mass_shape().iter().product::<usize>(), "the elements of the mass");
        mass.fill(MaybeUninit::new(0.0));
        // SAFETY: every element has just been written.
        unsafe { mass.assume_init_mut() }
    }

    /// The order of the Hadamard matrix that the cache's keys were multiplied by, as queries are; 1 where they were
    /// not.
    pub(crate) fn rotation_order(&self) -> usize {
        match &self.keys {
            Keys::Packed { .. } => 1,
            Keys::Cache(stores) => stores.geometry().rotation_order(0),
        }
    }

    /// The bytes of a T1.
    pub(crate) fn t1_bytes(&self) -> usize {
        self.geometry.t1.byte_len(1)
    }
}
