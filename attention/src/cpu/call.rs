//! The operands of one call.

use kvcache_kernels::InstructionSet;
use kvcache_schema::ElementType;

use super::dispatch::{Functions, ScoreRowsFunction, functions};
use super::generic::panel::BLOCK;
use super::generic::query_row::QueryRow;
use super::generic::rows::Groups;
use super::generic::scores::PARTS;
use super::source::Source;
use crate::masking::{alibi_slopes, visible_keys};
use crate::problem::{AttentionGeometry, AttentionIndices, AttentionPointers, AttentionProblem, Keys, RaggedRows};

/// A call, and how it is computed.
pub(super) struct Call<'a> {
    pub(super) geometry: AttentionGeometry,
    pub(super) indices: AttentionIndices<'a>,
    pub(super) functions: Functions,
    pub(super) source: Source<'a>,
    pub(super) groups: Groups,
    /// Whether rows are float32 in whole registers, which are used where they are.
    pub(super) in_place: bool,
    /// Multiplies few queries with keys where they are; none where a panel is faster.
    pub(super) score_rows: Option<ScoreRowsFunction>,
    /// Whether the kernel weighs rows of values where they are: whole registers of floats, or of codes in suitable
    /// groups.
    pub(super) weigh_in_place: bool,
    /// Elements of a row of float32 in scratch memory: `head_dim`, rounded up to whole registers of any width.
    pub(super) width: usize,
    /// How many bytes behind the first row in scratch memory each begins.
    pub(super) scratch_offsets: [usize; BLOCK],
    /// What products are multiplied with.
    pub(super) factor: f32,
    /// ALiBi's slope of each query head; empty without.
    slopes: Vec<f32>,
    pointers: AttentionPointers,
    t1_bytes: usize,
    total_seqlen: usize,
}

// SAFETY: `AttentionProblem::assume_checked`: nobody else writes what is read here, and each element of `attn_output`
// is written by the one task that has its query row.
unsafe impl Sync for Call<'_> {}

impl<'a> Call<'a> {
    pub(super) fn new(problem: &'a AttentionProblem<'_>, instructions: InstructionSet) -> Self {
        let geometry = *problem.geometry();
        let AttentionGeometry { num_heads, head_dim, t1, .. } = geometry;
        let (types, quant) = match problem.keys() {
            Keys::Packed(_) => ((t1, t1, None), None),
            Keys::Cache(stored) => {
                let stored = stored.geometry();
                ((t1, stored.t2, stored.quant.map(|quant| quant.t3)), stored.quant)
            }
        };
        let functions = functions(instructions, types);
        let width = head_dim.next_multiple_of(functions.lanes);
        let groups = quant.map_or_else(Groups::default, |quant| Groups::new(head_dim, quant.group, functions.lanes));
        let whole = head_dim.is_multiple_of(functions.lanes);
        let weigh_in_place = if quant.is_some() { !groups.in_row.is_empty() } else { whole };
        let score_rows = functions.score_rows.filter(|_| head_dim.is_multiple_of(PARTS) && weigh_in_place);
        Self {
            geometry,
            indices: *problem.indices(),
            functions,
            source: Source::new(problem),
            in_place: (types.0, types.1) == (ElementType::Float32, ElementType::Float32) && whole,
            score_rows,
            weigh_in_place,
            groups,
            width,
            scratch_offsets: std::array::from_fn(|t| t * width * size_of::<f32>()),
            factor: 1.0 / (head_dim as f32).sqrt(),
            slopes: if geometry.is_alibi { alibi_slopes(num_heads) } else { Vec::new() },
            pointers: problem.pointers(),
            t1_bytes: problem.t1_bytes(),
            total_seqlen: problem.total_seqlen(),
        }
    }

    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.geometry.num_heads / self.geometry.num_kv_heads
    }

    /// How many keys query `i` of sequence `b` sees, but for the mask.
    pub(super) fn visible(&self, b: usize, i: usize) -> usize {
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
        QueryRow {
            visible: visible_keys(&self.geometry, b, queries.len(), keys.len(), i),
            mask,
            slope: self.slopes.get(h).copied().unwrap_or(0.0),
            position: (keys.len() + i) as i64 - queries.len() as i64,
            at: (token * self.geometry.num_heads + h) * self.geometry.head_dim * self.t1_bytes,
        }
    }

    /// A row's elements of `query`.
    pub(super) fn query(&self, row: &QueryRow) -> *const u8 {
        self.pointers.query.wrapping_add(row.at)
    }

    /// A row's elements of `attn_output`.
    pub(super) fn output(&self, row: &QueryRow) -> *mut u8 {
        self.pointers.attn_output.wrapping_add(row.at)
    }
}
