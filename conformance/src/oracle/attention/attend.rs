//! Attends: the scores of each sequence, their weights, and the weighted sums.

use kvcache_schema::ElementType;

use crate::oracle::attention::attended::Attended;
use crate::oracle::attention::decisions::{Attention, OutputShape, WithoutKeys};
use crate::oracle::attention::masks::{bias, has_alibi, has_causal_mask, mask_element, sees, slopes};
use crate::oracle::attention::ragged::{Query, Ragged};
use crate::oracle::attention::scores::{Terms, factor};
use crate::oracle::attention::softmax::weights;
use crate::oracle::attention::tolerance::{Row, tolerance};
use crate::oracle::decisions::{Conversion, Outside};
use crate::oracle::execute::OutsideOfCache;
use crate::oracle::numbers::read;
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

/// What is attended to, and how.
pub(super) struct Attend<'a> {
    pub(super) attention: &'a Attention,
    pub(super) outside: Outside,
    pub(super) ragged: &'a Ragged,
    /// The elements of `query`, `key`, `value` and `attn_mask`.
    pub(super) packed: [Vec<f64>; 4],
    /// What a call gave: nothing more is computed where that is something else.
    pub(super) made: Option<&'a Tensor>,
}

/// The elements of a tensor of T1; none if it has another type, like a mask without elements may have.
pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    let element = tensor.element();
    match element {
        ElementType::Float32 | ElementType::Float16 => {
            let count = tensor.bytes().len() / element.align();
            (0..count).map(|i| read(Conversion::Nearest, element, tensor.bytes(), i)).collect()
        }
        ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => Vec::new(),
    }
}

impl Attend<'_> {
    /// The output of a legal call.
    pub(super) fn output(&self) -> Result<Attended, Stop> {
        let (ragged, attention) = (self.ragged, self.attention);
        let (tokens, heads) = (ragged.tokens() as usize, ragged.num_heads);
        let shape = match attention.output_shape {
            OutputShape::Right => vec![tokens, heads, ragged.head_dim],
            OutputShape::HeadsFirst => vec![heads, tokens, ragged.head_dim],
            OutputShape::Merged => vec![tokens, heads * ragged.head_dim],
        };
        let count = shape.iter().product();
        let element = if attention.output_of_float32 { ElementType::Float32 } else { ragged.t1 };
        let (values, tolerance) = (vec![0.0; count], vec![0.0; count]);
        let mut output = Attended { element, shape, values, tolerance, unrounded: None };
        if self.made.is_some_and(|made| !output.has_form_of(made)) {
            return Err(Stop::Contradicted);
        }
        let slopes = slopes(attention, ragged);
        for b in 0..ragged.len() {
            let (queries, keys) = (self.queries(b)?, self.keys(b)?);
            for (h, i) in (0..heads).flat_map(|h| (0..queries.len()).map(move |i| (h, i))) {
                let (n, m, token) = (queries.len() as i64, ragged.kvlen(b), queries[i]);
                let query = Query { b, i: i as i64, n, m, h };
                let scored = self.score(&query, token, &keys, slopes[h])?;
                let row = if attention.output_heads_first { h * tokens + token } else { token * heads + h };
                // What lies behind the output's end is left out.
                let first = row * ragged.head_dim;
                if first + ragged.head_dim > count {
                    continue;
                }
                self.write(&scored, first, &mut output);
                if self.made.is_some_and(|made| !output.is_near_from(first, ragged.head_dim, made)) {
                    return Err(Stop::Contradicted);
                }
            }
        }
        Ok(output)
    }

    /// The rows of `query` that are a sequence's.
    fn queries(&self, b: usize) -> Result<Vec<usize>, OutsideOfCache> {
        let mut rows = Vec::new();
        for row in self.ragged.queries(self.attention, b) {
            match usize::try_from(row) {
                Ok(token) if row < self.ragged.tokens() => rows.push(token),
                _ if self.outside == Outside::Skipped => {}
                _ => return Err(OutsideOfCache),
            }
        }
        Ok(rows)
    }

    /// The positions of a sequence's keys and their rows, none for one of zeros.
    fn keys(&self, b: usize) -> Result<Vec<(i64, Option<usize>)>, OutsideOfCache> {
        let (mut keys, rows) = (Vec::new(), self.ragged.total_keys());
        for (row, j) in self.ragged.keys(self.attention, b) {
            match row {
                None => keys.push((j, None)),
                Some(row) if (0..rows).contains(&row) => keys.push((j, Some(row as usize))),
                // A slice that ends behind the tensor is cut.
                Some(_) if self.outside == Outside::Skipped => {}
                Some(row) if self.outside == Outside::FromEnd && (-rows..0).contains(&row) => {
                    keys.push((j, Some((row + rows) as usize)));
                }
                Some(_) => return Err(OutsideOfCache),
            }
        }
        Ok(keys)
    }

    /// The scores of a head of a query, whose row is `token`.
    fn score(
        &self,
        query: &Query,
        token: usize,
        of_keys: &[(i64, Option<usize>)],
        slope: f64,
    ) -> Result<Scored, OutsideOfCache> {
        let (ragged, attention, [queries, keys, ..]) = (self.ragged, self.attention, &self.packed);
        let causal = has_causal_mask(attention, ragged, query.b);
        let (alibi, factor) = (has_alibi(attention, ragged, query.b), factor(attention, ragged));
        let elements = attention.product_elements.count(ragged.head_dim, attention.n);
        let q = &queries[(token * ragged.num_heads + query.h) * ragged.head_dim..][..elements];
        let mut scored = Scored::default();
        for &(j, row) in of_keys {
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
            scored.scores.push(terms.score(attention));
            scored.terms.push(terms);
            scored.squares.push(squares);
            scored.heads.push(head);
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
    fn write(&self, scored: &Scored, first: usize, output: &mut Attended) {
        let (attention, head_dim) = (self.attention, self.ragged.head_dim);
        let weights = weights(attention, &scored.scores);
        let hides = |score: f64| score == f64::NEG_INFINITY;
        let sees_none = scored.scores.iter().all(|&score| hides(score));
        let nothing = match attention.without_keys {
            WithoutKeys::Nan if sees_none => f64::NAN,
            WithoutKeys::NanOfHidden if sees_none && !weights.is_empty() => f64::NAN,
            _ => 0.0,
        };
        let counts = |&key: &usize| attention.adds_hidden_values || !hides(scored.scores[key]);
        let seen: Vec<_> = (0..weights.len()).filter(counts).collect();
        let value = |key: usize, d: usize| scored.heads[key].map_or(0.0, |head| self.packed[2][head + d]);
        let mut sum = vec![nothing; head_dim];
        for &key in &seen {
            sum.iter_mut().enumerate().for_each(|(d, sum)| *sum += weights[key] * value(key, d));
        }
        let elements = attention.value_elements.count(head_dim, attention.n);
        output.values[first..][..elements].copy_from_slice(&sum[..elements]);
        if seen.is_empty() {
            return;
        }
        let row = Row {
            t1: self.ragged.t1,
            head_dim,
            output_type: output.element,
            terms: seen.iter().map(|&key| scored.terms[key]).collect(),
            squares: seen.iter().map(|&key| scored.squares[key]).collect(),
            scores: seen.iter().map(|&key| scored.scores[key]).collect(),
            weights: seen.iter().map(|&key| weights[key]).collect(),
        };
        let allowed = &mut output.tolerance[first..][..head_dim];
        tolerance(&row, &sum, |key, d| value(seen[key], d), allowed);
        let none = |(d, x): &(usize, &f64)| *d >= elements || !x.is_finite();
        sum.iter().enumerate().filter(none).for_each(|(d, _)| allowed[d] = 0.0);
    }
}

/// The scores of one query and head, for each key, and what they were made of.
#[derive(Default)]
struct Scored {
    terms: Vec<Terms>,
    scores: Vec<f64>,
    /// The sum of the squares of a product's terms, each multiplied with the factor.
    squares: Vec<f64>,
    /// The first element in `key` and `value`; none for a key of zeros.
    heads: Vec<Option<usize>>,
}
