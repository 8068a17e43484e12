//! The operands of one call.

use std::mem::MaybeUninit;
use std::ops::Range;

use kvcache_schema::ElementType::Float32;
use kvcache_simd::{InstructionSet, amd_family};

use super::dispatch::{Functions, functions};
use super::generic::merge::QueryElements;
use super::generic::rows::BLOCK;
use super::generic::softcap::Products;
use super::generic::softmax::QueryRow;
use super::read::{Read, Scales};
use super::source::Source;
use crate::masking::{alibi_slopes, visible_keys};
use crate::problem::{AttentionGeometry, AttentionIndices, AttentionPointers, AttentionProblem, Keys, RaggedRows};

/// AMD's family of processors whose first-level cache holds 48 KiB.
const ZEN_5: u32 = 26;

/// A call, and how it is computed.
pub(super) struct AttentionArgs<'a> {
    pub(super) geometry: AttentionGeometry,
    pub(super) indices: AttentionIndices<'a>,
    pub(super) functions: Functions,
    pub(super) source: Source<'a>,
    /// How rows of keys are read, and rows of values.
    pub(super) reads: [Read; 2],
    /// Scales that are not read where they are; none where they are, or where there are none.
    pub(super) scales: Option<Scales>,
    /// Elements of a row of float32 in scratch memory: `head_dim`, rounded up to whole registers of any width.
    pub(super) width: usize,
    /// The bytes from the first row in scratch memory to each row.
    pub(super) scratch_offsets: [usize; BLOCK],
    /// Whether prefetches go into the first-level cache, else into the second. With it Zen 5 takes 0.8 to 0.9 of the
    /// time where a head's rows are contiguous; others are too far apart for the few lines that one set of that cache
    /// holds. Zen 4, whose first level holds less, takes up to 1.3 times as long with it. Intel's processors
    /// wait for few lines at once there.
    pub(super) prefetch_to_l1: bool,
    /// The order of the Hadamard matrix that queries are multiplied by.
    order: usize,
    /// ALiBi's slope of each query head; empty without.
    slopes: Vec<f32>,
    /// The sink of each query head; empty without.
    sinks: Vec<f32>,
    pointers: AttentionPointers,
    attn_output: *mut u8,
    /// By query row and head: the largest score and the sum of weights; null unless somebody needs them.
    totals: *mut [f32; 2],
    t1_bytes: usize,
    total_seqlen: usize,
}

// SAFETY: `AttentionProblem::assume_checked`: nobody else writes what is read here, and each element of `attn_output`
// and of the totals is written by the one task that has its query row.
unsafe impl Sync for AttentionArgs<'_> {}

impl<'a> AttentionArgs<'a> {
    pub(super) fn new(
        problem: &'a AttentionProblem<'_>,
        attn_output: &'a mut [MaybeUninit<u8>],
        totals: Option<&'a mut [[f32; 2]]>,
        instructions: InstructionSet,
    ) -> Self {
        let geometry = *problem.geometry();
        let AttentionGeometry { num_heads, head_dim, t1, .. } = geometry;
        assert_eq!(attn_output.len(), problem.output_bytes(), "the bytes of attn_output");
        assert!(
            attn_output.is_empty() || attn_output.as_ptr().addr().is_multiple_of(t1.align()),
            "attn_output is aligned"
        );
        let (t2, quant) = match problem.keys() {
            Keys::Packed { .. } => (t1, None),
            Keys::Cache(stored) => (stored.geometry().t2, stored.geometry().quant),
        };
        // The floats that rows are read as: every number that `KeyValueCache` gives is one, or of a quantized cache
        // every product of code and scale in float32.
        let floats = match quant {
            Some(_) => Float32,
            None if t1 == Float32 => t2,
            None => t1,
        };
        let (functions, quantized) = functions(instructions, [t1, floats], head_dim, quant);
        let width = head_dim.next_multiple_of(functions.lanes);
        let (reads, scales) = match quant.zip(quantized) {
            Some((quant, functions)) => Read::codes(instructions, (t2, quant), &functions, head_dim, width),
            None => (Read::floats(instructions, [t2, floats], head_dim, width), None),
        };
        let source = Source::new(problem);
        let prefetch_to_l1 = amd_family() >= ZEN_5 && !source.heads_are_adjacent();
        Self {
            geometry,
            indices: problem.indices(),
            functions,
            source,
            reads,
            scales,
            width,
            scratch_offsets: std::array::from_fn(|t| t * width * size_of::<f32>()),
            prefetch_to_l1,
            order: problem.rotation_order(),
            slopes: if geometry.is_alibi { alibi_slopes(num_heads) } else { Vec::new() },
            sinks: problem.sinks(),
            pointers: problem.pointers(),
            attn_output: attn_output.as_mut_ptr().cast(),
            totals: totals.map_or(std::ptr::null_mut(), <[_]>::as_mut_ptr),
            t1_bytes: problem.t1_bytes(),
            total_seqlen: problem.total_seqlen(),
        }
    }

    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.geometry.num_heads / self.geometry.num_kv_heads
    }

    /// The most key heads whose scales are read at once.
    pub(super) fn heads_at_once(&self) -> usize {
        if self.source.heads_are_adjacent() { self.geometry.num_kv_heads } else { 1 }
    }

    /// The keys that query `i` of sequence `b` sees, but for the mask.
    pub(super) fn visible(&self, b: usize, i: usize) -> Range<usize> {
        let RaggedRows { queries, keys } = self.indices.sequence(b);
        visible_keys(&self.geometry, b, queries.len(), keys.len(), i)
    }

    /// Query `i` of sequence `b`, in head `h`.
    pub(super) fn query_row(&self, b: usize, i: usize, h: usize) -> QueryRow {
        let RaggedRows { queries, keys } = self.indices.sequence(b);
        let token = queries.start + i;
        let mask = self.pointers.attn_mask.map_or(std::ptr::null(), |mask| {
            let plane = if mask.per_head { h } else { 0 };
            let at = (plane * self.total_seqlen + token) * mask.width + keys.start;
            mask.data.wrapping_add(at * self.t1_bytes)
        });
        let seen = self.visible(b, i);
        QueryRow {
            visible: seen.end,
            hidden: seen.start,
            mask,
            slope: self.slopes.get(h).copied().unwrap_or(0.0),
            position: (keys.len() + i) as i64 - queries.len() as i64,
            sink: self.sinks.get(h).copied().unwrap_or(f32::NEG_INFINITY),
            at: (token * self.geometry.num_heads + h) * self.geometry.head_dim * self.t1_bytes,
        }
    }

    /// Turns the products of that many rows and keys into scores, if there is a soft cap. Returns the factor that turns
    /// what is there then into scores.
    ///
    /// # Safety
    /// The instruction set is supported, and these products are there, one row each [`BLOCK`] elements, in whole
    /// registers.
    pub(super) unsafe fn soft_cap(&self, products: *mut f32, rows: usize, keys: usize) -> f32 {
        let AttentionGeometry { scale: factor, softcap, .. } = self.geometry;
        if softcap == 0.0 {
            return factor;
        }
        // SAFETY: see `# Safety`.
        unsafe { (self.functions.soft_cap)(&Products { products, rows, keys, factor, softcap }) }
        1.0
    }

    /// Reads a row's elements of `query` as float32, multiplied by the Hadamard matrix of the keys, if there is one.
    ///
    /// # Safety
    /// The instruction set is supported, and [`width`](Self::width) numbers can be written.
    pub(super) unsafe fn read_query(&self, row: &QueryRow, to: *mut f32) {
        let from = self.pointers.query.wrapping_add(row.at);
        let elements = QueryElements { from, len: self.geometry.head_dim, to, order: self.order };
        // SAFETY: see `# Safety`; the row is the problem's.
        unsafe { (self.functions.read_query)(&elements) }
    }

    /// A row's elements of `attn_output`.
    pub(super) fn output(&self, row: &QueryRow) -> *mut u8 {
        self.attn_output.wrapping_add(row.at)
    }

    /// Keeps a row's largest score and sum of weights, if somebody needs them.
    ///
    /// # Safety
    /// The row is the caller's.
    pub(super) unsafe fn keep_total(&self, row: &QueryRow, total: [f32; 2]) {
        if !self.totals.is_null() {
            // SAFETY: there is a total for each row, and see `# Safety`.
            unsafe { *self.total_of(row) = total }
        }
    }

    /// A row's largest score and sum of weights.
    ///
    /// # Safety
    /// They are kept, and nobody writes them any more.
    pub(super) unsafe fn total(&self, row: &QueryRow) -> [f32; 2] {
        // SAFETY: see `# Safety`.
        unsafe { *self.total_of(row) }
    }

    fn total_of(&self, row: &QueryRow) -> *mut [f32; 2] {
        self.totals.wrapping_add(row.at / (self.geometry.head_dim * self.t1_bytes))
    }
}
