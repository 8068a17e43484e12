//! Attends: the scores of each sequence, their weights, and the weighted sums.

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::arithmetic::Arithmetic;
use crate::oracle::attention::decisions::{Attention, Axis, RowsWithoutKeys, Terms};
use crate::oracle::attention::ragged::{Query, Ragged};
use crate::oracle::attention::tolerance::{Row, tolerance};
use crate::oracle::behavior::Outside;
use crate::oracle::execute::OutsideOfCache;
use crate::tensor::Tensor;

/// An output, and how far each element may be from what an implementation that does the same gives.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "described above")]
pub struct Attended {
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    /// 0 where the value is not finite.
    pub tolerance: Vec<f64>,
}

/// The tensors of a call as numbers.
pub(super) struct Packed {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
    mask: Vec<f64>,
}

impl Packed {
    /// What is read of the tensors of a call.
    pub(super) fn new([query, key, value]: [&Tensor; 3], mask: Option<&Tensor>, reads: Option<fn(f64) -> f64>) -> Self {
        let read = |tensor: &Tensor| match reads {
            Some(reads) => numbers(tensor).into_iter().map(reads).collect(),
            None => numbers(tensor),
        };
        Self { query: read(query), key: read(key), value: read(value), mask: mask.map(numbers).unwrap_or_default() }
    }
}

/// The elements of a tensor of T1; none if it has another type, like a mask without elements may have.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let (element, arithmetic) = (tensor.element(), Arithmetic::default());
    match element {
        ElementType::Float32 | ElementType::Float16 => {
            let count = tensor.bytes().len() / element.align();
            (0..count).map(|i| arithmetic.read(element, tensor.bytes(), i)).collect()
        }
        ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => Vec::new(),
    }
}

/// One query and head of a call, so that the same need not be computed again where a mistake does not change it.
#[derive(Debug)]
pub struct KnownRow {
    scored: Scored,
    weights: Vec<f64>,
    sum: Vec<f64>,
    tolerance: Vec<f64>,
}

/// The output of a legal call, and its rows. `known` are those of a call with the same queries, keys and values, by the
/// decisions of the specification.
pub(super) fn attend(
    ragged: &Ragged,
    packed: &Packed,
    attention: &Attention,
    outside: Outside,
    known: Option<&[KnownRow]>,
) -> Result<(Attended, Vec<KnownRow>), OutsideOfCache> {
    let shape = (attention.output_shape)(ragged);
    let count = shape.iter().product();
    let element = (attention.output_type)(ragged.t1);
    let mut output = Attended { element, shape, values: vec![0.0; count], tolerance: vec![0.0; count] };
    let slopes: Vec<_> = (0..ragged.num_heads).map(|h| (attention.slope)(ragged, h)).collect();
    let mut rows = Vec::new();
    for b in 0..ragged.len() {
        let known = known.and_then(|known| known.get(rows.len()..)).unwrap_or_default();
        let sequence = Sequence::new(ragged, packed, attention, outside, b)?;
        let scored = sequence.scores(&slopes, known)?;
        let weights = sequence.weights(&scored);
        for (i, (scored, weights)) in scored.into_iter().zip(weights).enumerate() {
            rows.push(sequence.row(scored, weights, known.get(i)));
        }
        let first = rows.len() - sequence.queries.len() * ragged.num_heads;
        rows[first..].iter().for_each(|row| sequence.write(row, &mut output));
    }
    Ok((output, rows))
}

/// A sequence: its rows of `query`, and for each of its keys the position and the row, none for one of zeros.
struct Sequence<'a> {
    ragged: &'a Ragged,
    packed: &'a Packed,
    attention: &'a Attention,
    outside: Outside,
    b: usize,
    queries: Vec<usize>,
    keys: Vec<(i64, Option<usize>)>,
}

/// The scores of one query and head, and what they were made of.
#[derive(Debug)]
struct Scored {
    h: usize,
    /// The row of the query.
    token: usize,
    terms: Vec<Terms>,
    scores: Vec<f64>,
    /// For each key the sum of the squares of its product's terms.
    squares: Vec<f64>,
    /// For each key its first element in `key` and `value`; none for one of zeros.
    heads: Vec<Option<usize>>,
}

impl<'a> Sequence<'a> {
    fn new(
        ragged: &'a Ragged,
        packed: &'a Packed,
        attention: &'a Attention,
        outside: Outside,
        b: usize,
    ) -> Result<Self, OutsideOfCache> {
        let rows = ragged.total_keys();
        let mut keys = Vec::new();
        for key in (attention.keys)(ragged, b) {
            match key.row {
                None => keys.push((key.j, None)),
                Some(row) if (0..rows).contains(&row) => keys.push((key.j, Some(row as usize))),
                // A slice that ends behind the tensor is cut.
                Some(_) if outside == Outside::Skipped => {}
                Some(row) if outside == Outside::FromEnd && (-rows..0).contains(&row) => {
                    keys.push((key.j, Some((row + rows) as usize)));
                }
                Some(_) => return Err(OutsideOfCache),
            }
        }
        let mut queries = Vec::new();
        for row in (attention.queries)(ragged, b) {
            match usize::try_from(row) {
                Ok(token) if row < ragged.tokens() => queries.push(token),
                _ if outside == Outside::Skipped => {}
                _ => return Err(OutsideOfCache),
            }
        }
        Ok(Self { ragged, packed, attention, outside, b, queries, keys })
    }

    /// The scores of all heads, and of each head of all queries.
    fn scores(&self, slopes: &[f64], known: &[KnownRow]) -> Result<Vec<Scored>, OutsideOfCache> {
        let mut scored = Vec::with_capacity(slopes.len() * self.queries.len());
        for (h, &slope) in slopes.iter().enumerate() {
            for (i, &token) in self.queries.iter().enumerate() {
                let (n, m) = (self.queries.len() as i64, self.ragged.kvlen(self.b));
                let known = known.get(scored.len()).map(|known| &known.scored);
                let known = known.filter(|known| (known.token, known.h) == (token, h));
                scored.push(self.scores_of(Query { b: self.b, i: i as i64, n, m, h }, token, slope, known)?);
            }
        }
        Ok(scored)
    }

    fn scores_of(
        &self,
        query: Query,
        token: usize,
        slope: f64,
        known: Option<&Scored>,
    ) -> Result<Scored, OutsideOfCache> {
        let (ragged, attention) = (self.ragged, self.attention);
        let (causal, alibi) = ((attention.has_causal_mask)(ragged, self.b), (attention.has_alibi)(ragged, self.b));
        let factor = (attention.factor)(ragged);
        let sums = (attention.sums_of_products)(ragged.t1);
        let elements = (attention.product_elements)(ragged.head_dim);
        let known = known.filter(|_| sums.is_none() && elements == ragged.head_dim);
        let first = (token * ragged.num_heads + query.h) * ragged.head_dim;
        let q = &self.packed.query[first..][..ragged.head_dim];
        let count = self.keys.len();
        let mut scored = Scored {
            h: query.h,
            token,
            terms: Vec::with_capacity(count),
            scores: Vec::with_capacity(count),
            squares: Vec::with_capacity(count),
            heads: Vec::with_capacity(count),
        };
        for (key, &(j, row)) in self.keys.iter().enumerate() {
            let head = row.map(|row| self.head(row, query.h)).transpose()?.flatten();
            let known = known.filter(|known| head.is_some() && known.heads.get(key) == Some(&head));
            let (product, squares) = match (known, head) {
                (Some(known), _) => (known.terms[key].product, known.squares[key]),
                (None, Some(head)) => inner_product(&q[..elements], &self.packed.key[head..], sums),
                (None, None) => (0.0, 0.0),
            };
            let terms = Terms {
                product,
                factor,
                causal: match (attention.hides)(&query, j) {
                    true => Some(f64::NEG_INFINITY),
                    false => causal.then(|| if (attention.sees)(ragged, &query, j) { 0.0 } else { f64::NEG_INFINITY }),
                },
                alibi: alibi.then(|| (attention.bias)(self.ragged, &query, slope, j)),
                attn_mask: self.mask(&query, j)?,
            };
            scored.scores.push((attention.score)(&terms));
            scored.terms.push(terms);
            scored.squares.push(squares);
            scored.heads.push(head);
        }
        Ok(scored)
    }

    /// The first element of the key of a query head; none if it is outside of the tensor and such accesses are skipped.
    fn head(&self, row: usize, h: usize) -> Result<Option<usize>, OutsideOfCache> {
        let Ragged { kv_heads, head_dim, .. } = *self.ragged;
        let head = (self.attention.key_head)(self.ragged, h);
        let first = (row * kv_heads + head) * head_dim;
        let inside = first + head_dim <= self.packed.key.len().min(self.packed.value.len());
        match self.outside {
            // Keys that are read wrongly may be fewer than kvstarts says.
            _ if inside && head < kv_heads => Ok(Some(first)),
            Outside::Flat if inside => Ok(Some(first)),
            Outside::Skipped => Ok(None),
            _ => Err(OutsideOfCache),
        }
    }

    /// The first element of the value of a query head whose key begins at `key`.
    fn value_head(&self, key: usize, h: usize) -> usize {
        let Attention { key_head, value_head, .. } = self.attention;
        let head_dim = self.ragged.head_dim;
        value_head.map_or(key, |of| key - key_head(self.ragged, h) * head_dim + of(self.ragged, h) * head_dim)
    }

    /// What `attn_mask` adds for the key at position `j`.
    fn mask(&self, query: &Query, j: i64) -> Result<Option<f64>, OutsideOfCache> {
        let Some(shape) = &self.ragged.mask else { return Ok(None) };
        let Some(element) = (self.attention.mask_element)(self.ragged, shape, query, j) else { return Ok(None) };
        match usize::try_from(element).ok().and_then(|element| self.packed.mask.get(element)) {
            Some(&mask) => Ok(Some(mask)),
            None if self.outside == Outside::Skipped => Ok(Some(0.0)),
            None => Err(OutsideOfCache),
        }
    }

    /// The weights of all scores.
    fn weights(&self, scored: &[Scored]) -> Vec<Vec<f64>> {
        let softmax = |scores: &[f64]| (self.attention.softmax)(self.ragged.t1, scores);
        let (rows, keys, queries) = (scored.len(), self.keys.len(), self.queries.len());
        let mut weights: Vec<_> = scored.iter().map(|scored| scored.scores.clone()).collect();
        // The rows whose scores of a key belong together.
        let apart: Vec<Vec<usize>> = match self.attention.normalized_over {
            Axis::Keys => return scored.iter().map(|scored| softmax(&scored.scores)).collect(),
            Axis::Queries => {
                (0..rows).step_by(queries.max(1)).map(|first| (first..first + queries).collect()).collect()
            }
            Axis::Heads => (0..queries).map(|i| (i..rows).step_by(queries).collect()).collect(),
        };
        for rows in apart {
            for key in 0..keys {
                let scores: Vec<_> = rows.iter().map(|&row| scored[row].scores[key]).collect();
                for (&row, weight) in rows.iter().zip(softmax(&scores)) {
                    let of_row = &mut weights[row];
                    of_row[key] = weight;
                }
            }
        }
        weights
    }

    /// The weighted sum of one query and head.
    fn row(&self, scored: Scored, weights: Vec<f64>, known: Option<&KnownRow>) -> KnownRow {
        let (attention, head_dim) = (self.attention, self.ragged.head_dim);
        let sums = (attention.sums_of_values)(self.ragged.t1);
        let plain = (attention.sums_of_products)(self.ragged.t1).or(sums).is_none()
            && !attention.adds_hidden_values
            && attention.value_head.is_none();
        let is_known = |known: &&KnownRow| {
            (&known.scored.heads, &known.scored.terms, &known.scored.scores, &known.weights)
                == (&scored.heads, &scored.terms, &scored.scores, &weights)
        };
        let sees_none = scored.scores.iter().all(|&score| score == f64::NEG_INFINITY);
        if let Some(KnownRow { sum, tolerance, .. }) = known.filter(|_| plain && !sees_none).filter(is_known) {
            let (sum, tolerance) = (sum.clone(), tolerance.clone());
            return KnownRow { scored, weights, sum, tolerance };
        }
        let count = weights.len();
        let (seen, used): (Vec<usize>, _) = match attention.rows_without_keys {
            RowsWithoutKeys::Mean if sees_none => ((0..count).collect(), vec![1.0 / count as f64; count]),
            _ => {
                let counts = |&key: &usize| attention.adds_hidden_values || scored.scores[key] != f64::NEG_INFINITY;
                ((0..count).filter(counts).collect(), weights.clone())
            }
        };
        let nothing = match attention.rows_without_keys {
            RowsWithoutKeys::Nan if sees_none => f64::NAN,
            RowsWithoutKeys::NanOfHidden if sees_none && count > 0 => f64::NAN,
            _ => 0.0,
        };
        let value = |key: usize, d: usize| {
            scored.heads[key].map_or(0.0, |head| self.packed.value[self.value_head(head, scored.h) + d])
        };
        let (mut sum, mut allowed) = (vec![nothing; head_dim], vec![0.0; head_dim]);
        // Before the division the largest weight is 1.
        let largest = seen.iter().map(|&key| used[key]).fold(0.0, f64::max);
        let divisor = if attention.divides_last && largest > 0.0 { 1.0 / largest } else { 1.0 };
        for &key in &seen {
            let weight = rounded(sums, used[key] * divisor);
            for (d, sum) in sum.iter_mut().enumerate() {
                *sum = rounded(sums, *sum + rounded(sums, weight * value(key, d)));
            }
        }
        if divisor != 1.0 {
            sum.iter_mut().for_each(|sum| *sum /= divisor);
        }
        if !seen.is_empty() {
            let row = Row {
                t1: self.ragged.t1,
                head_dim,
                output_type: (attention.output_type)(self.ragged.t1),
                terms: seen.iter().map(|&key| scored.terms[key]).collect(),
                squares: seen.iter().map(|&key| scored.squares[key] * scored.terms[key].factor.powi(2)).collect(),
                scores: seen.iter().map(|&key| scored.scores[key]).collect(),
                weights: seen.iter().map(|&key| used[key]).collect(),
                exponentiates: attention.exponentiates,
                sums_of_products: (attention.sums_of_products)(self.ragged.t1),
                sums_of_values: sums,
            };
            tolerance(&row, &sum, |key, d| value(seen[key], d), &mut allowed);
            let infinite = allowed.iter_mut().zip(&sum).filter(|(_, x)| !x.is_finite());
            infinite.for_each(|(allowed, _)| *allowed = 0.0);
        }
        KnownRow { scored, weights, sum, tolerance: allowed }
    }

    /// Writes the output of one query and head; what lies behind the output's end is left out.
    fn write(&self, row: &KnownRow, output: &mut Attended) {
        let head_dim = self.ragged.head_dim;
        let first = (self.attention.output_head)(self.ragged, row.scored.token, row.scored.h) * head_dim;
        let Some(values) = output.values.get_mut(first..first + head_dim) else { return };
        for (written, &x) in values.iter_mut().zip(&row.sum) {
            *written = (self.attention.output)(output.element, x);
        }
        let tolerance = &mut output.tolerance[first..first + head_dim];
        tolerance.copy_from_slice(&row.tolerance);
        let ignored = (self.attention.value_elements)(head_dim)..;
        values[ignored.clone()].fill(0.0);
        tolerance[ignored].fill(0.0);
    }
}

/// The inner product of a query and the key that begins `key`, and the sum of the squares of its terms.
fn inner_product(query: &[f64], key: &[f64], sums: Option<ElementType>) -> (f64, f64) {
    let (mut product, mut squares) = (0.0, 0.0);
    for (q, k) in query.iter().zip(key) {
        let term = q * k;
        product = rounded(sums, product + rounded(sums, term));
        squares += term * term;
    }
    (product, squares)
}

/// Rounded to a type, if to one.
fn rounded(element: Option<ElementType>, x: f64) -> f64 {
    match element {
        Some(ElementType::Float16) => f16::from_f64(x).to_f64(),
        Some(_) => f64::from(x as f32),
        None => x,
    }
}
