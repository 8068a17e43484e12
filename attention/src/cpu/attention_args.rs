//! The operands of one call.

use std::mem::MaybeUninit;
use std::ops::Range;

use kvcache_kernels::RowLoader;
use kvcache_schema::ElementType::Float32;
use kvcache_simd::{InstructionSet, amd_family};

use super::dispatch::{
    CodeFunctions, Functions, IntegerFunctions, QkRowsFunction, ReadFunction, code_functions, functions,
};
use super::generic::panel::WORDS;
use super::generic::qk_panels::PARTS;
use super::generic::rows::BLOCK;
use super::generic::softcap::Products;
use super::generic::softmax::{QueryRow, SUMS};
use super::source::Source;
use crate::masking::{alibi_slopes, visible_keys};
use crate::problem::{AttentionGeometry, AttentionIndices, AttentionPointers, AttentionProblem, Keys, RaggedRows};

/// Bytes of rows that are loaded at once: they stay in the first-level cache until they are used.
const LOADED_BYTES: usize = 16 << 10;

/// AMD's family of processors whose first-level cache holds 48 KiB.
const ZEN_5: u32 = 26;

/// Scales as float32 in scratch memory.
pub(super) struct Scales {
    pub(super) read: ReadFunction,
    /// Scales of a row.
    pub(super) len: usize,
    /// The bytes from the first row to each row.
    pub(super) offsets: [usize; BLOCK],
}

impl Scales {
    fn new(read: ReadFunction, len: usize) -> Self {
        Self { read, len, offsets: Self::offsets(len) }
    }

    /// The bytes from the first of rows of `len` to each.
    pub(super) fn offsets(len: usize) -> [usize; BLOCK] {
        std::array::from_fn(|t| t * len * size_of::<f32>())
    }
}

/// Groups of that many elements, or whole times as many, are whole registers with all instruction sets.
const WHOLE: usize = 16;

/// Integer codes, whose scales enter sums.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub(super) functions: IntegerFunctions,
    /// Codes that share a scale, and how many scales a row has.
    pub(super) group: usize,
    pub(super) groups: usize,
    /// Whether the scales of values are multiplied with weights: groups are whole registers. Else values are products
    /// of code and scale.
    pub(super) scales_weights: bool,
}

impl Integers {
    fn new(functions: IntegerFunctions, group: usize, head_dim: usize) -> Self {
        Self { functions, group, groups: head_dim / group, scales_weights: group.is_multiple_of(WHOLE) }
    }
}

/// A call, and how it is computed.
pub(super) struct AttentionArgs<'a> {
    pub(super) geometry: AttentionGeometry,
    pub(super) indices: AttentionIndices<'a>,
    pub(super) functions: Functions,
    pub(super) source: Source<'a>,
    /// Loads rows that are not the floats which the functions read; none where they are.
    pub(super) loader: Option<RowLoader>,
    /// The functions for integer codes, and their groups.
    pub(super) integers: Option<Integers>,
    /// The functions for codes that few queries dequantize in registers.
    pub(super) codes: Option<CodeFunctions>,
    /// How scales are read that are not where they are; none where they are.
    pub(super) scales: Option<Scales>,
    /// Whether these floats are float32 in whole registers.
    pub(super) in_place: bool,
    /// QK scores of few queries over rows of keys; none where a panel is faster.
    pub(super) qk_rows: Option<QkRowsFunction>,
    /// Whether PV products read rows of values as these floats, which are whole registers; else as float32.
    pub(super) pv_in_place: bool,
    /// Elements of a row of float32 in scratch memory: `head_dim`, rounded up to whole registers of any width.
    pub(super) width: usize,
    /// The bytes from the first row in scratch memory to each row.
    pub(super) scratch_offsets: [usize; BLOCK],
    /// The bytes from the first loaded row to each row.
    pub(super) loaded_offsets: [usize; BLOCK],
    /// Rows that are loaded at once.
    pub(super) loaded_at_once: usize,
    /// Whether what is read soon is prefetched into the first-level cache, else into the second. With it Zen 5 takes 0.8
    /// to 0.9 of the time where a head's rows are contiguous; others are too far apart for the few lines that one set of
    /// that cache holds. Zen 4, whose first level holds less, takes up to 1.3 times as long with it. Intel's processors
    /// wait for few lines at once there.
    pub(super) prefetch_to_l1: bool,
    /// The order of the Hadamard matrix that queries are multiplied by.
    pub(super) order: usize,
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
        let loader = |t1, t3, group| RowLoader::new(instructions, (t1, t2, t3), head_dim, group);
        let (floats, loader) = match quant {
            Some(quant) => (Float32, loader(Float32, Some(Float32), quant.group)),
            None if t1 == Float32 || t1 == t2 => (t2, None),
            None => (t1, loader(t1, None, 1)),
        };
        let codes = quant.and_then(|quant| code_functions(instructions, quant.bits, head_dim, quant.group));
        let (functions, quantized) = functions(instructions, t1, floats, quant);
        let quantized = quant.zip(quantized);
        let integers = quantized
            .as_ref()
            .and_then(|(quant, functions)| Some(Integers::new(functions.integers?, quant.group, head_dim)));
        let source = Source::new(problem);
        let prefetch_to_l1 = amd_family() >= ZEN_5 && !source.heads_are_adjacent();
        let width = head_dim.next_multiple_of(functions.lanes);
        let whole = head_dim.is_multiple_of(functions.lanes);
        let each = |bytes: usize| std::array::from_fn(|t| t * width * bytes);
        let float_bytes = floats.byte_len(1);
        Self {
            geometry,
            indices: problem.indices(),
            functions,
            source,
            loader,
            integers,
            codes,
            scales: quantized.and_then(|(quant, functions)| {
                let len = head_dim / quant.group;
                // In place, registers of scales would end after the tensor.
                let parts = integers.is_some() && !len.is_multiple_of(WORDS);
                let in_registers = parts || codes.is_some_and(|codes| !codes.is_wide);
                let copies = quant.t3 != Float32 || in_registers;
                copies.then(|| Scales::new(functions.read_scales, len))
            }),
            in_place: floats == Float32 && whole,
            qk_rows: functions.qk_rows.filter(|_| head_dim.is_multiple_of(PARTS)),
            pv_in_place: whole && (floats == Float32 || functions.qk_rows.is_some()),
            width,
            scratch_offsets: each(size_of::<f32>()),
            loaded_offsets: each(float_bytes),
            loaded_at_once: (LOADED_BYTES / (width * float_bytes).max(1) / SUMS * SUMS).clamp(SUMS, BLOCK),
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

    /// A row's elements of `query`.
    pub(super) fn query(&self, row: &QueryRow) -> *const u8 {
        self.pointers.query.wrapping_add(row.at)
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
