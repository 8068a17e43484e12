//! Masks: the causal one, ALiBi's, and which element of `attn_mask` is a query's and a key's.

use crate::oracle::attention::decisions::{AlibiSequences, Attention, Bias, CausalSequences, Mask, Sees, Slopes};
use crate::oracle::attention::ragged::{Query, Ragged};

pub(super) fn has_causal_mask(attention: &Attention, ragged: &Ragged, b: usize) -> bool {
    let (several, decoding) = (ragged.seqlen(b) > 1, ragged.is_decoding(b));
    let decided = ragged.is_causal && several && !decoding;
    match attention.causal_sequences {
        CausalSequences::Decided => decided,
        CausalSequences::None => false,
        CausalSequences::All => several && !decoding,
        CausalSequences::OfOneQueryToo => ragged.is_causal && !decoding,
        CausalSequences::DecodingIgnored => ragged.is_causal && several,
        CausalSequences::WithoutMask => decided && ragged.mask.is_none(),
    }
}

/// Whether, with the causal mask, a query sees the key at position `j`.
pub(super) fn sees(attention: &Attention, ragged: &Ragged, query: &Query, j: i64) -> bool {
    let (&Query { i, n, m, .. }, own) = (query, query.position());
    match attention.sees {
        Sees::UpToOwn => j <= own,
        Sees::BeforeOwn => j < own,
        Sees::NextToo => j <= own + 1,
        Sees::AtStart => j <= i,
        Sees::NotPast => (m - n..=own).contains(&j),
        Sees::OffsetOfBounds => j <= ragged.max_kvlen - ragged.max_seqlen + i,
        Sees::OffsetNotNegative => j <= (m - n).max(0) + i,
    }
}

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

/// The slopes of the query heads: those of the largest power of two, then every second one of its double.
pub(super) fn slopes(attention: &Attention, ragged: &Ragged) -> Vec<f64> {
    let count = ragged.num_heads;
    let c = 1 << count.max(1).ilog2();
    let slope = |k: usize, count: usize| f64::exp2(-8.0 * k as f64 / count as f64);
    let of_head = |h: usize| match attention.slopes {
        Slopes::Right | Slopes::NotEverySecond if h < c => slope(h + 1, c),
        Slopes::Right => slope(2 * (h - c) + 1, 2 * c),
        Slopes::NotEverySecond => slope(h - c + 1, 2 * c),
        Slopes::AnyNumber => slope(h + 1, count),
        Slopes::Continued => slope(h + 1, c),
        Slopes::NextPower => slope(h + 1, count.next_power_of_two()),
        Slopes::FromOne if h < c => slope(h, c),
        Slopes::FromOne => slope(2 * (h - c), 2 * c),
    };
    (0..count).map(of_head).collect()
}

/// What ALiBi adds for the key at position `j`.
pub(super) fn bias(attention: &Attention, query: &Query, slope: f64, j: i64) -> f64 {
    let position = if attention.bias == Bias::AtStart { query.i } else { query.position() };
    let distance = (position - j) as f64;
    match attention.bias {
        Bias::NotCausal => slope * -distance,
        Bias::Symmetric => -slope * distance.abs(),
        _ if j > position => f64::NEG_INFINITY,
        Bias::Sign => slope * distance,
        Bias::Right | Bias::AtStart => slope * -distance,
    }
}

/// The number of the element of `attn_mask`, in row-major order, for the key at position `j`; `None` if there is no mask
/// or it is not looked at.
pub(super) fn mask_element(attention: &Attention, ragged: &Ragged, query: &Query, j: i64) -> Option<i64> {
    let (planes, rows, width) = ragged.mask?;
    let (&Query { b, i, h, .. }, rows, width) = (query, rows as i64, width as i64);
    let (seqstart, kvstart) = (ragged.seqstarts[b], ragged.kvstarts[b]);
    let plane = |plane: usize| planes.map_or(0, |_| plane as i64);
    let (own, row, column) = (plane(h), seqstart + i, kvstart + j);
    let at = |plane: i64, row: i64, column: i64| (plane * rows + row) * width + column;
    Some(match attention.mask {
        Mask::Ignored => return None,
        Mask::NotWithAlibi if ragged.is_alibi => return None,
        Mask::Right | Mask::NotWithAlibi => at(own, row, column),
        Mask::FirstPlane => at(0, row, column),
        Mask::PlaneOfKeyHead => at(plane(h / ragged.group()), row, column),
        Mask::ColumnsFromZero => at(own, row, j),
        Mask::ColumnsAtSeqstarts => at(own, row, seqstart + j),
        Mask::RowsFromZero => at(own, i, column),
        Mask::FirstRow => at(own, seqstart, column),
        Mask::BlockAtCorner => at(own, i, j),
        Mask::StrideOfKeys => (own * rows + row) * ragged.totals()[1] + column,
        Mask::StrideOfMaxKvlen => (own * rows + row) * ragged.max_kvlen + j,
    })
}
