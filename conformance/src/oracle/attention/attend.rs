//! Attends: the scores of each sequence, their weights, and the weighted sums; and the outputs that are
//! predicted so.

use std::rc::Rc;

use kvcache_schema::ElementType;

use crate::oracle::arithmetic::{read, rounded, write};
use crate::oracle::attention::mass::Mass;
use crate::oracle::attention::predict::{Attention, WithoutKeys};
use crate::oracle::attention::ragged::{Query, Ragged};
use crate::oracle::attention::scores::{
    Terms, bias, factor, has_alibi, has_causal_mask, mask_element, sees, slopes, weights,
};
use crate::oracle::attention::tolerance::tolerance;
use crate::oracle::decisions::{Conversion, Outside};
use crate::oracle::execute::OutsideOfCache;
use crate::tensor::Tensor;

/// Why a call is not predicted to its end.
pub(super) enum Stop {
    OutsideOfCache,
    /// The call that was made did something else.
    Contradicted,
}

impl From<OutsideOfCache> for Stop {
    fn from(OutsideOfCache: OutsideOfCache) -> Self {
        Self::OutsideOfCache
    }
}

pub(super) struct Attend<'a> {
    pub(super) attention: &'a Attention,
    pub(super) outside: Outside,
    pub(super) ragged: &'a Ragged,
    /// The elements of `query`, `key`, `value` and `attn_mask`.
    pub(super) packed: [Vec<f64>; 4],
    /// Whether the call gives the attention's mass.
    pub(super) has_mass: bool,
    /// What a call gave: nothing more is computed where that is something else.
    pub(super) made: Option<&'a Tensor>,
}

/// The elements of a tensor of T1; none if it has another type, like a mask without elements may have.
pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let element = tensor.element();
    let count = if element.is_float() { tensor.bytes().len() / element.align() } else { 0 };
    (0..count).map(|i| read(Conversion::Nearest, element, tensor.bytes(), i)).collect()
}

impl Attend<'_> {
    pub(super) fn output(&self) -> Result<Attended, Stop> {
        let (ragged, attention) = (self.ragged, self.attention);
        let (tokens, heads) = (ragged.totals()[0] as usize, ragged.num_heads);
        let shape = vec![tokens, heads, ragged.head_dim];
        let zeros = vec![0.0; shape.iter().product()];
        let (values, tolerance) = (zeros.clone(), zeros);
        let mut output = Attended { element: ragged.t1, shape, values, tolerance, unrounded: None, mass: None };
        if self.made.is_some_and(|made| !output.has_form_of(made)) {
            return Err(Stop::Contradicted);
        }
        let slopes = slopes(attention, ragged);
        let mut mass = self.has_mass.then(|| Mass::new(ragged));
        for b in 0..ragged.len() {
            let (queries, keys) = (ragged.queries(attention, b), ragged.keys(attention, b));
            let (first, n, m) = (queries.start, queries.end - queries.start, ragged.kvlen(b));
            for (h, token) in (0..heads).flat_map(|h| queries.clone().map(move |token| (h, token as usize))) {
                let query = Query { b, i: token as i64 - first, n, m, h };
                let mut scored = self.score(&query, token, &keys, slopes[h])?;
                let row = if attention.output_heads_first { h * tokens + token } else { token * heads + h };
                let first = row * ragged.head_dim;
                let scores: Vec<_> = scored.iter().map(|key| key.score).collect();
                scored.iter_mut().zip(weights(attention, &scores)).for_each(|(key, weight)| key.weight = weight);
                let seen = self.write(scored, first, &mut output);
                mass.iter_mut().for_each(|mass| mass.add(attention, ragged, &query, &seen));
                if self.made.is_some_and(|made| !output.is_near_from(first, ragged.head_dim, made)) {
                    return Err(Stop::Contradicted);
                }
            }
        }
        output.mass = mass.map(|mass| Box::new(mass.attended(ragged)));
        Ok(output)
    }

    /// The scores of a head of a query, whose row is `token`.
    fn score(
        &self,
        query: &Query,
        token: usize,
        of_keys: &[(Option<usize>, i64)],
        slope: f64,
    ) -> Result<Vec<Scored>, OutsideOfCache> {
        let (ragged, attention, [queries, keys, ..]) = (self.ragged, self.attention, &self.packed);
        let causal = has_causal_mask(attention, ragged, query.b);
        let (alibi, factor) = (has_alibi(attention, ragged, query.b), factor(attention, ragged));
        let q = &queries[(token * ragged.num_heads + query.h) * ragged.head_dim..][..ragged.head_dim];
        let mut scored = Vec::new();
        for &(row, j) in of_keys {
            let head = row.map(|row| self.head(row, query.h)).transpose()?.flatten();
            let (mut product, mut squares) = (0.0, 0.0);
            for (q, k) in head.iter().flat_map(|&head| q.iter().zip(&keys[head..])) {
                product += q * k;
                squares += (q * k * factor).powi(2);
            }
            let shown = || if sees(attention, ragged, query, j) { 0.0 } else { f64::NEG_INFINITY };
            let terms = Terms {
                product,
                factor,
                causal: causal.then(shown),
                alibi: alibi.then(|| bias(attention, query, slope, j)),
                attn_mask: self.mask(query, j)?,
            };
            scored.push(Scored { j, terms, score: terms.score(attention), squares, head, weight: 0.0 });
        }
        Ok(scored)
    }

    /// The first element of the key of a query head; none if it is outside of the tensor and such accesses are skipped.
    fn head(&self, row: usize, h: usize) -> Result<Option<usize>, OutsideOfCache> {
        let (&Ragged { kv_heads, head_dim, .. }, [_, key, value, _]) = (self.ragged, &self.packed);
        let head = self.ragged.key_head(self.attention, h);
        let first = (row * kv_heads + head) * head_dim;
        // Keys that are read wrongly may be fewer than kvstarts says.
        let inside = first + head_dim <= key.len().min(value.len());
        match self.outside {
            _ if inside && head < kv_heads => Ok(Some(first)),
            Outside::Flat if inside => Ok(Some(first)),
            Outside::Skipped => Ok(None),
            _ => Err(OutsideOfCache),
        }
    }

    /// What `attn_mask` adds for the key at position `j`.
    fn mask(&self, query: &Query, j: i64) -> Result<Option<f64>, OutsideOfCache> {
        let Some(element) = mask_element(self.attention, self.ragged, query, j) else { return Ok(None) };
        match usize::try_from(element).ok().and_then(|element| self.packed[3].get(element)) {
            Some(&mask) => Ok(Some(mask)),
            None if self.outside == Outside::Skipped => Ok(Some(0.0)),
            None => Err(OutsideOfCache),
        }
    }

    /// Writes the weighted sum of one query and head, and how far it may be from it, into the elements from `first` on.
    /// Gives the keys that count.
    fn write(&self, mut keys: Vec<Scored>, first: usize, output: &mut Attended) -> Vec<Scored> {
        let (attention, head_dim) = (self.attention, self.ragged.head_dim);
        let hides = |key: &Scored| key.score == f64::NEG_INFINITY;
        let nothing = match attention.without_keys {
            WithoutKeys::Nan if keys.iter().all(hides) => f64::NAN,
            WithoutKeys::NanOfHidden if keys.iter().all(hides) && !keys.is_empty() => f64::NAN,
            _ => 0.0,
        };
        keys.retain(|key| attention.adds_hidden_values || !hides(key));
        let value = |key: &Scored, d: usize| key.head.map_or(0.0, |head| self.packed[2][head + d]);
        let mut sum = vec![nothing; head_dim];
        for key in &keys {
            sum.iter_mut().enumerate().for_each(|(d, sum)| *sum += key.weight * value(key, d));
        }
        output.values[first..][..head_dim].copy_from_slice(&sum);
        if !keys.is_empty() {
            let allowed = &mut output.tolerance[first..][..head_dim];
            tolerance((self.ragged.t1, output.element), head_dim, &keys, &sum, value, allowed);
            sum.iter().zip(allowed).filter(|(x, _)| !x.is_finite()).for_each(|(_, allowed)| *allowed = 0.0);
        }
        keys
    }
}

/// A key as a head of a query sees it: its score, and what that is made of; and its weight.
pub(super) struct Scored {
    /// Its position in the sequence.
    pub(super) j: i64,
    pub(super) terms: Terms,
    pub(super) score: f64,
    /// The sum of the squares of the product's terms, each multiplied with the factor.
    pub(super) squares: f64,
    /// Its first element in `key` and `value`; none for a key of zeros.
    head: Option<usize>,
    pub(super) weight: f64,
}

/// A tolerance beyond so many times the largest value says nothing.
const MOST_TOLERANCE: f64 = 1024.0;

/// An output, and how far each element may be from what an implementation that does the same gives.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "described above")]
pub struct Attended {
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    /// 0 where the value is not finite.
    pub tolerance: Vec<f64>,
    /// It over products of code and scale that are not rounded, where these are others: as right, for a whole output.
    pub unrounded: Option<Rc<Attended>>,
    /// The other output, if the call gives it.
    pub mass: Option<Box<Attended>>,
}

impl Attended {
    /// It as an implementation gives it, rounded to its type.
    pub fn tensor(&self) -> Tensor {
        let Some(mut tensor) = Tensor::zeros(self.element, self.shape.clone()) else {
            unreachable!("it has values in memory")
        };
        for (i, &x) in self.values.iter().enumerate() {
            write(Conversion::Nearest, self.element, tensor.bytes_mut(), i, x);
        }
        tensor
    }

    /// Whether a call that gave `made` did the same. What is so vague that almost everything is within its tolerance,
    /// as where errors of large scores are multiplied with weights far beyond 1, says nothing.
    pub(crate) fn fits(&self, made: &[Tensor]) -> bool {
        let largest = |values: &[f64]| values.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
        let fits = |(one, made): (&Self, &Tensor)| {
            one.has_form_of(made)
                && largest(&one.tolerance) <= MOST_TOLERANCE * largest(&one.values).max(1.0)
                && one.is_near_from(0, one.values.len(), made)
        };
        self.outputs().count() == made.len() && self.either().any(|one| one.outputs().zip(made).all(fits))
    }

    /// It, and the mass.
    pub fn outputs(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.mass.as_deref()].into_iter().flatten()
    }

    /// It, and it unrounded.
    fn either(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.unrounded.as_deref()].into_iter().flatten()
    }

    /// Whether it has the type and the shape of a tensor.
    pub(super) fn has_form_of(&self, made: &Tensor) -> bool {
        (self.element, &self.shape[..]) == (made.element(), made.shape())
    }

    /// An element as it is expected: what is too large for the type is an infinity.
    pub fn expected(&self, i: usize) -> f64 {
        let x = self.values[i];
        if rounded(Conversion::Nearest, self.element, x).is_infinite() { f64::INFINITY.copysign(x) } else { x }
    }

    /// Whether so many elements of `made`, which has the same form, are within the tolerance.
    pub(super) fn is_near_from(&self, first: usize, len: usize, made: &Tensor) -> bool {
        (first..first + len).all(|i| {
            let made = read(Conversion::Nearest, self.element, made.bytes(), i);
            passes(self.expected(i), made, self.tolerance[i])
        })
    }

    /// Whether it is farther from what is right than that allows and, so many times, its own tolerance: as it is, and
    /// rounded as implementations give it.
    pub(crate) fn differs(&self, right: &Self, own: f64) -> bool {
        let is_far = |wrong: &Self, right: &Self| {
            wrong.outputs().zip(right.outputs()).any(|(wrong, right)| wrong.is_far_from(right, own))
        };
        self.either().all(|wrong| right.either().all(|right| is_far(wrong, right)))
    }

    fn is_far_from(&self, right: &Self, own: f64) -> bool {
        let is_near = |i: usize| {
            let (expected, allowed) = (right.values[i], right.tolerance[i] + own * self.tolerance[i]);
            let given = rounded(Conversion::Nearest, right.element, self.values[i]);
            passes(expected, self.values[i], allowed) && passes(expected, given, allowed)
        };
        self.element != right.element || self.shape != right.shape || !(0..self.values.len()).all(is_near)
    }
}

/// Whether a number is the expected one, within a tolerance; one that is not finite is the same infinity or a NaN.
fn passes(expected: f64, got: f64, tolerance: f64) -> bool {
    match expected.is_finite() {
        true => (got - expected).abs() <= tolerance,
        false => got == expected || got.is_nan() && expected.is_nan(),
    }
}
