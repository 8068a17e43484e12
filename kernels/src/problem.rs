//! One call of the operator, already checked: the input of every kernel.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_schema::{CacheStrides, ElementType, QuantBit, rotation_order};

use crate::addressing::Addressing;
use crate::workers::Workers;

/// An implementation of the operator. Every kernel must match [`Reference`](crate::Reference) bit for bit.
pub trait Kernel: Sync {
    /// The kernel's name, as a user writes it.
    fn name(&self) -> &'static str;

    /// Stores all current tokens into the cache.
    fn store(&self, stores: Stores<'_>, workers: &dyn Workers);

    /// Loads all tokens of all sequences from the cache.
    fn load(&self, problem: &mut Problem<'_>, workers: &dyn Workers);

    /// The operator: all stores, then all loads.
    fn run(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        self.store(problem.reborrow_stores(), workers);
        self.load(problem, workers);
    }
}

/// Dimensions, types and strides of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Sequences (B).
    pub batch: usize,
    /// Cache heads (H).
    pub num_heads: usize,
    /// Elements of a head (Dh).
    pub head_dim: usize,
    /// The layer that is stored to and loaded from.
    pub layer_idx: usize,
    /// The type of `current_key`, `current_value`, `key` and `value` (T1).
    pub t1: ElementType,
    /// The type of `cache` (T2).
    pub t2: ElementType,
    /// The quantization of the cache, if it is quantized.
    pub quant: Option<Quant>,
    /// The number of elements of `cache`.
    pub cache_len: usize,
    /// The strides of `cache`, in elements.
    pub cache: CacheStrides,
}

impl Geometry {
    /// The order of the Hadamard matrix that heads of keys (0) or values (1) are multiplied by, block by block; 1 where
    /// they are not.
    pub fn rotation_order(&self, kv: usize) -> usize {
        match self.quant {
            Some(quant) if kv == 0 && quant.rotated => rotation_order(self.head_dim, quant.group),
            _ => 1,
        }
    }
}

/// How a cache is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quant {
    /// The width of a code.
    pub bits: QuantBit,
    /// Neighbors along `head_dim` that share a scale; divides `head_dim`, and is even for four bits. With static scales
    /// it is `head_dim`, or 1 where that is 0.
    pub group: usize,
    /// Whether keys are multiplied by a Hadamard matrix before they are quantized.
    pub rotated: bool,
    /// The type of `scale` (T3).
    pub t3: ElementType,
    /// The number of elements of `scale`.
    pub scale_len: usize,
    /// The strides of `scale`, in elements; the stride of slots is 0 for static scales.
    pub scale: CacheStrides,
}

impl Quant {
    /// Whether scales are static: they belong to no slot, and are only read.
    pub const fn has_static_scales(&self) -> bool {
        // Strides of scales by slot are 0 only where there are none.
        self.scale.token == 0 && self.scale_len > 0
    }
}

/// The tokens that a call stores and loads.
#[derive(Debug, Clone, Copy)]
pub struct Indices<'a> {
    /// Shape (B + 1): where each sequence starts in `current_key` and `current_value`.
    pub seqstarts: &'a [i64],
    /// Shape (B + 1): where each sequence starts in `key` and `value`.
    pub kvstarts: &'a [i64],
    /// Shape (B): the position of each sequence's first current token.
    pub start_pos: &'a [i64],
    /// The slot of each token.
    pub addressing: Addressing<'a>,
}

/// The tokens of one sequence of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Its rows of `current_key` and `current_value`.
    pub current: Range<usize>,
    /// Its rows of `key` and `value`.
    pub all: Range<usize>,
    /// The position in the sequence of its first current token.
    pub start_pos: usize,
}

impl Indices<'_> {
    /// The tokens of sequence `b`, of indices that have been checked.
    pub fn sequence(&self, b: usize) -> Sequence {
        let range = |starts: &[i64]| starts[b] as usize..starts[b + 1] as usize;
        Sequence { current: range(self.seqstarts), all: range(self.kvstarts), start_pos: self.start_pos[b] as usize }
    }
}

/// The memory of what is stored, and of where; the first of two is for keys, the second for values.
#[derive(Debug, Clone, Copy)]
pub struct Pointers {
    /// `current_key` and `current_value`: T1, shape (`seqstarts[B]`, H, Dh).
    pub current: [*const u8; 2],
    /// `cache`: T2, shape by layout.
    pub cache: *mut u8,
    /// `scale`: T3, shape by layout; not accessed without quantization.
    pub scale: *mut u8,
}

/// The tokens of a call and one layer of the cache, already checked: all that is needed to store
/// the current tokens and to read the tokens of all sequences.
///
/// Every slot of its tokens is inside the cache, and all sizes fit in memory.
#[derive(Debug)]
pub struct Stores<'a> {
    geometry: Geometry,
    indices: Indices<'a>,
    pointers: Pointers,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Stores<'a> {
    /// Tokens and a layer that the caller has checked.
    ///
    /// # Safety
    /// - The types are a legal combination; `head_dim` is a multiple of the group.
    /// - The indices obey the rules "Starts" and "Slots" of the specification, and no two current tokens share a slot.
    /// - For the lifetime, each pointer is aligned for its type and valid for its tensor's shape (for any address where
    ///   the tensor is empty): the current tokens for reads, cache and scale for reads and writes of initialized
    ///   memory. Cache and scale overlap nothing else. Current tokens that come later are null, and are not read before
    ///   [`layer`](Self::layer) is given others.
    /// - For the lifetime, nobody else writes the current tokens, writes the slots of this layer that the call loads,
    ///   or accesses those that it stores.
    pub unsafe fn assume_checked(geometry: Geometry, indices: Indices<'a>, pointers: Pointers) -> Self {
        Self { geometry, indices, pointers, memory: PhantomData }
    }

    /// These tokens in another layer, with current keys and values of its own.
    ///
    /// # Safety
    /// The cache has the layer, and `current` is as [`assume_checked`](Self::assume_checked) asks for, for `'c`.
    pub unsafe fn layer<'c>(&'c mut self, layer_idx: usize, current: [*const u8; 2]) -> Stores<'c> {
        Stores {
            geometry: Geometry { layer_idx, ..self.geometry },
            pointers: Pointers { current, ..self.pointers },
            ..self.reborrow()
        }
    }

    /// The stores for a shorter lifetime, to be given to one kernel after another.
    pub fn reborrow(&mut self) -> Stores<'_> {
        Stores { ..*self }
    }

    /// Dimensions, types and strides.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The tokens to store and to load.
    pub fn indices(&self) -> &Indices<'a> {
        &self.indices
    }

    /// The tensors' memory. Access follows the conditions of [`assume_checked`](Self::assume_checked).
    pub fn pointers(&self) -> Pointers {
        self.pointers
    }

    /// Rows of `current_key` and `current_value`.
    pub fn total_seqlen(&self) -> usize {
        self.indices.seqstarts[self.geometry.batch] as usize
    }

    /// Rows of `key` and `value`.
    pub fn total_kvlen(&self) -> usize {
        self.indices.kvstarts[self.geometry.batch] as usize
    }
}

/// One call of the operator, already checked: what it stores and reads, and its outputs.
#[derive(Debug)]
pub struct Problem<'a> {
    stores: Stores<'a>,
    num_repeat: usize,
    outputs: [*mut u8; 2],
}

impl<'a> Problem<'a> {
    /// Stores with outputs that the caller has checked, of `num_repeat` heads per cache head.
    ///
    /// # Safety
    /// For the lifetime, the outputs are aligned for T1, valid for writes of their shape (for any address where it is
    /// empty) and overlap nothing else, and nobody else accesses them.
    pub unsafe fn assume_checked(stores: Stores<'a>, num_repeat: usize, outputs: [*mut u8; 2]) -> Self {
        Self { stores, num_repeat, outputs }
    }

    /// What the call stores and reads.
    pub fn stores(&self) -> &Stores<'a> {
        &self.stores
    }

    /// What the call stores and reads, to be given to a kernel.
    pub fn reborrow_stores(&mut self) -> Stores<'_> {
        self.stores.reborrow()
    }

    /// Output heads per cache head.
    pub fn num_repeat(&self) -> usize {
        self.num_repeat
    }

    /// `key` and `value`: T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh). Access follows the conditions of
    /// [`assume_checked`](Self::assume_checked).
    pub fn outputs(&self) -> [*mut u8; 2] {
        self.outputs
    }
}
