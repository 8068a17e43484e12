//! A call in the form that the threads share: its row functions, and the bytes of everything that they move.

use kvcache_schema::ElementType;
use kvcache_simd::InstructionSet;

use super::block::{PerOperand, Row, Rows};
use super::dispatch::{self, RowFunctions};
use crate::cache_bytes::CacheBytes;
use crate::problem::{Geometry, Stores};

/// A call in the form that the threads share.
pub(crate) struct CallPlan<'a> {
    pub(super) stores: &'a Stores<'a>,
    pub(super) num_repeat: usize,
    pub(super) outputs: [*mut u8; 2],
    pub(super) functions: RowFunctions,
    /// The bits of an element; of a scale 0 without scales of groups: a static scale is the whole row's.
    pub(super) bits: PerOperand,
    /// The elements of a key head, and of a value head.
    pub(super) heads: [Row; 2],
    pub(super) bytes: CacheBytes,
}

// SAFETY: threads read the current tokens, and write disjoint ranges of tokens: in the store phase to slots of which no
// two tokens share one, in the load phase to the outputs while the cache is only read. `Stores::assume_checked` keeps
// others away.
unsafe impl Sync for CallPlan<'_> {}

impl<'a> CallPlan<'a> {
    /// The call with the row functions of an instruction set that this machine has; a call that loads nothing may have
    /// any outputs.
    pub(super) fn new(
        stores: &'a Stores<'a>,
        num_repeat: usize,
        outputs: [*mut u8; 2],
        instructions: InstructionSet,
    ) -> Self {
        let geometry = stores.geometry();
        let Geometry { t1, t2, quant, head_dim, .. } = *geometry;
        let t3 = quant.map(|quant| quant.t3);
        let group = quant.map_or(1, |quant| quant.group);
        let (functions, scale_bits) = match quant {
            Some(quant) if quant.has_static_scales() => {
                (dispatch::static_scale_functions(instructions, (t1, t2, quant.t3), group), 0)
            }
            _ => (dispatch::row_functions(instructions, (t1, t2, t3), group), t3.map_or(0, ElementType::bits)),
        };
        let bits = PerOperand { values: t1.bits(), cache: t2.bits(), scale: scale_bits };
        let heads = [0, 1].map(|kv| Row { order: geometry.rotation_order(kv), ..Row::new(head_dim, group) });
        Self { stores, num_repeat, outputs, functions, bits, heads, bytes: CacheBytes::new(geometry) }
    }

    /// Bytes of a token's key and value.
    pub(super) fn value_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t1, .. } = *self.stores.geometry();
        2 * t1.byte_len(num_heads * head_dim)
    }

    /// Bytes that a load writes of a token.
    pub(super) fn output_bytes(&self) -> usize {
        self.value_bytes() * self.num_repeat
    }

    /// Bytes that a token's key and value take in cache and scale.
    pub(super) fn cache_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t2, quant, .. } = *self.stores.geometry();
        let len = 2 * num_heads * head_dim;
        t2.byte_len(len) + quant.map_or(0, |quant| quant.t3.byte_len(len / quant.group))
    }

    /// The row of a slot's head in cache, and the row of its scales.
    pub(super) fn row(&self, slot: usize, kv: usize, h: usize) -> [*mut u8; 2] {
        let (pointers, (cache, scale)) = (self.stores.pointers(), self.bytes.head(slot, kv, h));
        [pointers.cache.wrapping_add(cache), pointers.scale.wrapping_add(scale)]
    }

    /// The bytes of a row in each operand; none of a static scale, which is the whole head's.
    pub(super) fn bytes(&self, row: Row) -> PerOperand {
        PerOperand {
            values: row.len * self.bits.values / 8,
            cache: row.len * self.bits.cache / 8,
            scale: row.groups * self.bits.scale / 8,
        }
    }

    /// The first one of some rows in pieces of at most `len` elements, which are whole groups unless a group is longer.
    pub(super) fn pieces(&self, rows: Rows, len: usize) -> impl Iterator<Item = Rows> {
        let Rows { row, .. } = rows;
        (0..row.len).step_by(len).map(move |at| {
            let skip = self.bytes(row.part(at));
            Rows {
                count: 1,
                row: row.part(len.min(row.len - at)),
                values: rows.values.skip(skip.values),
                cache: rows.cache.skip(skip.cache),
                scale: rows.scale.skip(skip.scale),
                ..rows
            }
        })
    }
}
