//! Masks: the causal one, ALiBi's, and which element of `attn_mask` is a query's and a key's.

use crate::oracle::attention::decisions::{AlibiSequences, Attention, Bias, CausalSequences, Mask, Sees, Slopes};
use crate::oracle::attention::ragged::{MaskShape, Query, Ragged};
use crate::oracle::numbers::to_float16;

/// Whether sequence `b` has the causal mask.
pub(super) fn has_causal_mask(attention: &Attention, ragged: &Ragged, b: usize) -> bool {
    let (several, decoding) = (ragged.seqlen(b) > 1, ragged.decoding_batches);
    let decided = ragged.is_causal && several && !ragged.is_decoding(b);
    let is_first = |count: i128| (b as i128) < count;
    let of_several = ragged.is_causal && several;
    match attention.causal_sequences {
        CausalSequences::Decided => decided,
        CausalSequences::None => false,
        CausalSequences::All => several && !ragged.is_decoding(b),
        CausalSequences::OfOneQueryToo => ragged.is_causal && !ragged.is_decoding(b),
        CausalSequences::DecodingIgnored => of_several,
        CausalSequences::OneMore => of_several && !is_first(i128::from(decoding) + 1),
        CausalSequences::OneLess => of_several && !is_first(i128::from(decoding) - 1),
        CausalSequences::DecodingAsFlag => of_several && decoding == 0,
        CausalSequences::WithoutMask => decided && ragged.mask.is_none(),
    }
}

/// Whether, with the causal mask, a query sees the key at position `j`.
pub(super) fn sees(attention: &Attention, ragged: &Ragged, query: &Query, j: i64) -> bool {
    let &Query { b, i, n, m, .. } = query;
    let own = query.position();
    match attention.sees {
        Sees::UpToOwn => j <= own,
        Sees::BeforeOwn => j < own,
        Sees::NextToo => j <= own + 1,
        Sees::AtStart => j <= i,
        Sees::OnlyWithoutPast => m != n || j <= own,
        Sees::NotPast => (m - n..=own).contains(&j),
        Sees::OffsetOfBounds => j <= ragged.max_kvlen - ragged.max_seqlen + i,
        Sees::OffsetOfMaxKvlen => j <= ragged.max_kvlen - n + i,
        Sees::OffsetOfMaxSeqlen => j <= m - ragged.max_seqlen + i,
        Sees::OffsetNotNegative => j <= (m - n).max(0) + i,
        Sees::PackedRows => ragged.kvstarts[b] + j <= ragged.seqstarts[b] + i,
        Sees::OwnSequenceAlone => !(0..m).contains(&j) || j <= own,
    }
}

/// Whether sequence `b` has ALiBi's mask.
pub(super) fn has_alibi(attention: &Attention, ragged: &Ragged, b: usize) -> bool {
    ragged.is_alibi
        && match attention.alibi_sequences {
            AlibiSequences::Flagged => true,
            AlibiSequences::None => false,
            AlibiSequences::WithCausal => ragged.is_causal,
            AlibiSequences::NotDecoding => !ragged.is_decoding(b),
            AlibiSequences::WithoutMask => ragged.mask.is_none(),
        }
}

/// The slopes of the query heads.
pub(super) fn slopes(attention: &Attention, ragged: &Ragged) -> Vec<f64> {
    let (count, group) = (ragged.num_heads, ragged.group());
    let (c, mut right) = (1 << count.max(1).ilog2(), slopes_of(count));
    let slope = |k: usize, count: usize| f64::exp2(-8.0 * k as f64 / count as f64);
    // Those behind the first c, by their number there.
    let others = |k: fn(usize) -> usize| {
        (0..count).map(|h| if h < c { slope(h + 1, c) } else { slope(k(h - c), 2 * c) }).collect()
    };
    match attention.slopes {
        Slopes::Right => return right,
        Slopes::AnyNumber => return (1..=count).map(|k| slope(k, count)).collect(),
        Slopes::Continued => return (1..=count).map(|k| slope(k, c)).collect(),
        Slopes::NotEverySecond => return others(|i| i + 1),
        Slopes::NextPower => return (1..=count).map(|k| slope(k, count.next_power_of_two())).collect(),
        Slopes::FromOne => {
            return (0..count).map(|h| if h < c { slope(h, c) } else { slope(2 * (h - c), 2 * c) }).collect();
        }
        Slopes::OfKeyHeads => return (0..count).map(|h| slopes_of(ragged.kv_heads)[h / group]).collect(),
        Slopes::ByKeyHead => return (0..count).map(|h| right[h / group]).collect(),
        Slopes::Float16 => return right.into_iter().map(to_float16).collect(),
        Slopes::Reversed => right.reverse(),
    }
    right
}

/// The slopes of so many heads: those of the largest power of two, then every second one of its double.
fn slopes_of(num_heads: usize) -> Vec<f64> {
    let c = 1 << num_heads.max(1).ilog2();
    let first = (1..=c).map(|k| (-8.0 * k as f64 / c as f64).exp2());
    let others = (0..).map(|k| (-4.0 * (2 * k + 1) as f64 / c as f64).exp2());
    first.chain(others).take(num_heads).collect()
}

/// What ALiBi adds for the key at position `j`.
pub(super) fn bias(attention: &Attention, ragged: &Ragged, query: &Query, slope: f64, j: i64) -> f64 {
    let position = match attention.bias {
        Bias::AtStart => query.i,
        Bias::OffsetOfBounds => ragged.max_kvlen - ragged.max_seqlen + query.i,
        Bias::OffsetOfMaxKvlen => ragged.max_kvlen - query.n + query.i,
        _ => query.position(),
    };
    let distance = (position - j) as f64;
    match attention.bias {
        Bias::NotCausal => slope * -distance,
        Bias::Symmetric => -slope * distance.abs(),
        _ if j > position => f64::NEG_INFINITY,
        Bias::NoDistance => 0.0,
        Bias::Sign => slope * distance,
        Bias::TimesLog2e => slope * -distance * std::f64::consts::LOG2_E,
        Bias::Squared => -slope * distance * distance,
        Bias::Float16 => to_float16(slope * to_float16(-distance)),
        Bias::Right | Bias::AtStart | Bias::OffsetOfBounds | Bias::OffsetOfMaxKvlen => slope * -distance,
    }
}

/// The number of the element of `attn_mask`, in row-major order, for the key at position `j`; `None` if the mask is not
/// looked at.
pub(super) fn mask_element(
    attention: &Attention,
    ragged: &Ragged,
    mask: &MaskShape,
    query: &Query,
    j: i64,
) -> Option<i64> {
    let &Query { b, i, n, m, h } = query;
    let (seqstart, kvstart, keys) = (ragged.seqstarts[b], ragged.kvstarts[b], ragged.total_keys());
    let (rows, width) = (mask.rows as i64, mask.width as i64);
    let plane = |plane: usize| mask.planes.map_or(0, |_| plane as i64);
    let (own, row, column) = (plane(h), seqstart + i, kvstart + j);
    // The element of a plane, a row and a column, where rows and planes are so far from each other.
    let at = |plane: i64, row: i64, column: i64| plane * rows * width + row * width + column;
    let of_stride = |stride: i64, column: i64| (own * rows + row) * stride + column;
    Some(match attention.mask {
        Mask::Right => at(own, row, column),
        Mask::Ignored => return None,
        Mask::NotWithAlibi if ragged.is_alibi => return None,
        Mask::NotWithCausal if ragged.is_causal && n > 1 && !ragged.is_decoding(b) => return None,
        Mask::NotForDecoding if ragged.is_decoding(b) => return None,
        Mask::NotWithAlibi | Mask::NotWithCausal | Mask::NotForDecoding => at(own, row, column),
        Mask::FirstPlane => at(0, row, column),
        Mask::PlaneOfKeyHead => at(plane(h / ragged.group()), row, column),
        Mask::PlanesTiled => at(plane(h % ragged.kv_heads), row, column),
        Mask::PlanesInMiddle => (row * mask.planes.map_or(1, |planes| planes as i64) + own) * width + column,
        Mask::ColumnsFromZero => at(own, row, j),
        Mask::ColumnsAtSeqstarts => at(own, row, seqstart + j),
        Mask::ColumnAfter => at(own, row, column + 1),
        Mask::ColumnBefore => return Some(at(own, row, column - 1)).filter(|&element| element >= 0),
        Mask::RowsFromZero => at(own, i, column),
        Mask::RowsAtKvstarts => at(own, kvstart + i, column),
        Mask::FirstRow => at(own, seqstart, column),
        Mask::BlockAtCorner => at(own, i, j),
        Mask::StrideOfKeys => of_stride(keys, column),
        Mask::StrideOfOwnKeys => of_stride(m, column),
        Mask::StrideOfMaxKvlen => of_stride(ragged.max_kvlen, j),
        Mask::OwnSequence => (own * n + i) * m + j,
        Mask::PackedBlocks => (0..b).map(|b| ragged.seqlen(b) * ragged.kvlen(b)).sum::<i64>() + i * m + j,
        Mask::Transposed => (own * width + column) * rows + row,
        Mask::PlanesOfKeys => own * rows * keys + row * width + column,
    })
}
