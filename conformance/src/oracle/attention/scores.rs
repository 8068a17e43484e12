//! Scores: the factor of inner products, the masks and what they do to a score, and the softmax.

use crate::oracle::attention::predict::{
    AlibiSequences, Attention, Bias, CausalSequences, Factor, Mask, Score, Sees, Slopes, Softmax,
};
use crate::oracle::attention::ragged::{Query, Ragged};

/// What the score of a key is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    /// The inner product of query and key.
    pub(super) product: f64,
    /// What it is multiplied with.
    pub(super) factor: f64,
    /// What the causal mask adds: 0 or -inf.
    pub(super) causal: Option<f64>,
    /// What ALiBi adds.
    pub(super) alibi: Option<f64>,
    /// What `attn_mask` adds.
    pub(super) attn_mask: Option<f64>,
}

pub(super) fn factor(attention: &Attention, ragged: &Ragged) -> f64 {
    let head_dim = ragged.head_dim as f64;
    match attention.factor {
        Factor::RootOfHeadDim => 1.0 / head_dim.sqrt(),
        Factor::One => 1.0,
        Factor::HeadDim => 1.0 / head_dim,
        Factor::AllHeads => 1.0 / (ragged.num_heads as f64 * head_dim).sqrt(),
    }
}

impl Terms {
    /// What the masks add, in their order.
    pub(super) fn masks(&self) -> impl Iterator<Item = f64> {
        [self.causal, self.alibi, self.attn_mask].into_iter().flatten()
    }

    /// The score: what -inf is added to is -inf, whatever it was.
    fn right(&self) -> f64 {
        self.masks().fold(self.product * self.factor, |score, mask| match mask == f64::NEG_INFINITY {
            true => mask,
            false => score + mask,
        })
    }

    pub(super) fn score(self, attention: &Attention) -> f64 {
        let n = attention.n as f64;
        let hides = |mask: f64| mask == f64::NEG_INFINITY;
        let finite = |mask: Option<f64>| mask.filter(|&mask| !hides(mask)).unwrap_or(0.0);
        let hidden = |mask: Option<f64>| mask.filter(|&mask| hides(mask));
        // A number beside which no score counts, in place of -inf.
        let at_least = |least: f64| {
            let of = |mask: f64| if hides(mask) { least } else { mask };
            let [causal, alibi, attn_mask] = [self.causal, self.alibi, self.attn_mask].map(|mask| mask.map(of));
            Self { causal, alibi, attn_mask, ..self }
        };
        let terms = match attention.score {
            Score::Right => self,
            Score::MaskOnlyHides => Self { attn_mask: hidden(self.attn_mask), ..self },
            Score::NonzeroSees => {
                let shown_if = |is_shown: bool| if is_shown { 0.0 } else { f64::NEG_INFINITY };
                Self { attn_mask: self.attn_mask.map(|mask| shown_if(mask != 0.0)), ..self }
            }
            Score::MaskBeforeScaling => {
                let product = self.product + finite(self.attn_mask);
                Self { product, attn_mask: hidden(self.attn_mask), ..self }
            }
            Score::AlibiBeforeScaling => {
                Self { product: self.product + finite(self.alibi), alibi: hidden(self.alibi), ..self }
            }
            Score::Added => return self.masks().fold(self.product * self.factor, |score, mask| score + mask),
            Score::Capped => return if hides(self.right()) { self.right() } else { n * (self.right() / n).tanh() },
            Score::MasksFinite => at_least(-1e30),
            Score::MasksMinusN => at_least(-n),
        };
        terms.right()
    }
}

/// The weights of scores that add up to 1; zeros where every score is -inf.
pub(super) fn weights(attention: &Attention, scores: &[f64]) -> Vec<f64> {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let largest = |scores: &[f64]| scores.iter().copied().fold(f64::NEG_INFINITY, larger);
    let whole = largest(scores);
    if whole == f64::NEG_INFINITY {
        return vec![0.0; scores.len()];
    }
    let exps = |factor: f64| scores.iter().map(move |score| ((score - whole) * factor).exp());
    let divided = |exps: Vec<f64>, sum: f64| exps.iter().map(|exp| exp / sum).collect();
    // A softmax over blocks of n keys, of which the sums of values and of weights are rescaled or not.
    let streaming = |values_rescaled: bool, weights_rescaled: bool| {
        let of_blocks = |rescaled: bool| {
            let blocks = scores.chunks(attention.n).enumerate();
            blocks.flat_map(move |(i, block)| {
                let so_far = largest(&scores[..i * attention.n + block.len()]);
                let from = if rescaled { whole } else { so_far };
                block.iter().map(move |&score| if score == f64::NEG_INFINITY { 0.0 } else { (score - from).exp() })
            })
        };
        divided(of_blocks(values_rescaled).collect(), of_blocks(weights_rescaled).sum())
    };
    match attention.softmax {
        Softmax::Right => divided(exps(1.0).collect(), exps(1.0).sum()),
        // In float32, whose range it is about.
        Softmax::WithoutMaximum => {
            let sum: f32 = scores.iter().map(|score| score.exp() as f32).sum();
            scores.iter().map(|score| f64::from(score.exp() as f32 / sum)).collect()
        }
        Softmax::BaseTwo => divided(exps(std::f64::consts::LN_2).collect(), exps(std::f64::consts::LN_2).sum()),
        Softmax::TimesLog2e => divided(exps(std::f64::consts::LOG2_E).collect(), exps(std::f64::consts::LOG2_E).sum()),
        Softmax::NotNormalized => exps(1.0).collect(),
        Softmax::ValuesNotRescaled => streaming(false, true),
        Softmax::SumNotRescaled => streaming(true, false),
        Softmax::NothingRescaled => streaming(false, false),
    }
}

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
        Slopes::Right if h < c => slope(h + 1, c),
        Slopes::Right => slope(2 * (h - c) + 1, 2 * c),
        Slopes::AnyNumber => slope(h + 1, count),
        Slopes::NextPower => slope(h + 1, count.next_power_of_two()),
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

/// The number of the element of `attn_mask`, in row-major order, for the key at position `j`; `None` if there is no
/// mask or it is not looked at.
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
        Mask::ColumnsFromZero => at(own, row, j),
        Mask::BlockAtCorner => at(own, i, j),
        Mask::StrideOfKeys => (own * rows + row) * ragged.totals()[1] + column,
        Mask::StrideOfMaxKvlen => (own * rows + row) * ragged.max_kvlen + j,
    })
}
