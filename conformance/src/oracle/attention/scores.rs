//! Scores: the factor of inner products, and what masks do to a score.

use crate::oracle::attention::decisions::{Attention, Factor, Score};
use crate::oracle::attention::ragged::Ragged;

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
        Factor::PaddedHeadDim => 1.0 / (ragged.head_dim.next_power_of_two() as f64).sqrt(),
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
        let masked = |mask: &dyn Fn(f64) -> f64| Self { attn_mask: self.attn_mask.map(mask), ..self };
        let shown_if = |is_shown: bool| if is_shown { 0.0 } else { f64::NEG_INFINITY };
        // A number beside which no score counts, in place of -inf.
        let at_least = |least: f64| {
            let of = |mask: f64| if hides(mask) { least } else { mask };
            let [causal, alibi, attn_mask] = [self.causal, self.alibi, self.attn_mask].map(|mask| mask.map(of));
            Self { causal, alibi, attn_mask, ..self }
        };
        let terms = match attention.score {
            Score::Right => self,
            Score::MaskOnlyHides => Self { attn_mask: hidden(self.attn_mask), ..self },
            Score::MaskDoesNotHide => Self { attn_mask: self.attn_mask.filter(|&mask| !hides(mask)), ..self },
            Score::MaskMultiplied => return Self { attn_mask: None, ..self }.right() * self.attn_mask.unwrap_or(1.0),
            Score::NonzeroSees => masked(&|mask| shown_if(mask != 0.0)),
            Score::NonzeroHides => masked(&|mask| shown_if(mask == 0.0)),
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
