//! Scores: the factor of inner products, the heads that meet, and what masks do to a score.

use kvcache_schema::ElementType;

use crate::oracle::attention::decisions::{Attention, Factor, KeyHead, Score, Sums};
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

/// What an inner product is multiplied with.
pub(super) fn factor(attention: &Attention, ragged: &Ragged) -> f64 {
    let head_dim = ragged.head_dim as f64;
    let root = match attention.factor {
        Factor::RootOfHeadDim => head_dim,
        Factor::One => return 1.0,
        Factor::HeadDim => return 1.0 / head_dim,
        Factor::Inverse => return head_dim.sqrt(),
        Factor::AllHeads => ragged.num_heads as f64 * head_dim,
        Factor::AllKeyHeads => ragged.kv_heads as f64 * head_dim,
        Factor::PaddedHeadDim => ragged.head_dim.next_power_of_two() as f64,
        Factor::RootOfN => attention.n as f64,
    };
    1.0 / root.sqrt()
}

impl KeyHead {
    /// The key head of a query head.
    pub(super) fn of(self, ragged: &Ragged, h: usize) -> usize {
        let grouped = h / ragged.group();
        match self {
            Self::Grouped => grouped,
            Self::Interleaved => h % ragged.kv_heads,
            Self::Own => h,
            Self::ByNumberOfKeyHeads => h / ragged.kv_heads,
            Self::First => 0,
        }
    }
}

impl Sums {
    /// The types that inner products and weighted values are summed in, where they are narrower than float32.
    pub(super) fn types(self, t1: ElementType) -> [Option<ElementType>; 2] {
        let (half, narrow) = (Some(ElementType::Float16), t1 == ElementType::Float16);
        match self {
            Self::ProductsOfFloat16 if narrow => [half, None],
            Self::ValuesOfFloat16 if narrow => [None, half],
            Self::AllOfFloat16 if narrow => [half, half],
            Self::AllInFloat16 => [half, half],
            _ => [None, None],
        }
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

    /// With another `attn_mask`.
    fn masked(self, mask: impl Fn(f64) -> f64) -> Self {
        Self { attn_mask: self.attn_mask.map(mask), ..self }
    }

    /// The score of a key.
    pub(super) fn score(self, attention: &Attention) -> f64 {
        let n = attention.n as f64;
        let shown = |is_shown: bool| if is_shown { 0.0 } else { f64::NEG_INFINITY };
        let hides = |mask: f64| mask == f64::NEG_INFINITY;
        let finite = |mask: Option<f64>| mask.filter(|&mask| !hides(mask)).unwrap_or(0.0);
        let hidden = |mask: Option<f64>| mask.filter(|&mask| hides(mask));
        let ln2 = |mask: f64| mask * std::f64::consts::LN_2;
        let at_least = |least: f64| move |mask: f64| if hides(mask) { least } else { mask };
        let computed = |least: f64| Self {
            causal: self.causal.map(at_least(least)),
            alibi: self.alibi.map(at_least(least)),
            ..self
        };
        let seen = |changed: &dyn Fn(f64) -> f64| match self.right() {
            f64::NEG_INFINITY => f64::NEG_INFINITY,
            score => changed(score),
        };
        let terms = match attention.score {
            Score::Right => self,
            Score::MaskOnlyHides => Self { attn_mask: hidden(self.attn_mask), ..self },
            Score::MaskNanZero => Self { attn_mask: self.attn_mask.filter(|mask| !mask.is_nan()), ..self },
            Score::MaskNanHides => self.masked(|mask| if mask.is_nan() { f64::NEG_INFINITY } else { mask }),
            Score::MaskDoesNotHide => Self { attn_mask: self.attn_mask.filter(|&mask| !hides(mask)), ..self },
            Score::MaskMultiplied => {
                return Self { attn_mask: None, ..self }.right() * self.attn_mask.unwrap_or(1.0);
            }
            Score::NonzeroSees => self.masked(|mask| shown(mask != 0.0)),
            Score::NonzeroHides => self.masked(|mask| shown(mask == 0.0)),
            Score::HidesBelow => self.masked(|mask| if mask < -n { f64::NEG_INFINITY } else { mask }),
            Score::NeverPositive => self.masked(|mask| mask.min(0.0)),
            Score::MaskLn2 => self.masked(ln2),
            Score::MasksLn2 => Self { alibi: self.alibi.map(ln2), ..self.masked(ln2) },
            Score::MaskSubtracted => self.masked(|mask| if hides(mask) { mask } else { -mask }),
            Score::MaskBeforeScaling => {
                let product = self.product + finite(self.attn_mask);
                Self { product, attn_mask: hidden(self.attn_mask), ..self }
            }
            Score::MasksBeforeScaling => {
                let product = self.product + finite(self.attn_mask) + finite(self.alibi);
                Self { product, attn_mask: hidden(self.attn_mask), alibi: hidden(self.alibi), ..self }
            }
            Score::AlibiBeforeScaling => {
                Self { product: self.product + finite(self.alibi), alibi: hidden(self.alibi), ..self }
            }
            Score::MaskTwice => self.masked(|mask| 2.0 * mask),
            Score::Added => return self.masks().fold(self.product * self.factor, |score, mask| score + mask),
            Score::Clipped => return seen(&|score| score.clamp(-n, n)),
            Score::Capped => return seen(&|score| n * (score / n).tanh()),
            Score::NoProduct => Self { product: 0.0, ..self },
            // A number beside which no score counts.
            Score::CausalFinite => computed(-1e30),
            Score::CausalMinusN => computed(-n),
            Score::MasksFinite => computed(-1e30).masked(at_least(-1e30)),
            Score::MasksMinusN => computed(-n).masked(at_least(-n)),
        };
        terms.right()
    }
}
