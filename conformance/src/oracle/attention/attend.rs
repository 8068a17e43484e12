//! Attends: the scores of each sequence, their weights, and the weighted sums.

use std::rc::Rc;

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::attention::attended::{Attended, Given};
use crate::oracle::attention::decisions::{Attention, Inputs, Output, OutputHeads, OutputShape, Softmax, WithoutKeys};
use crate::oracle::attention::masks::{bias, has_alibi, has_causal_mask, mask_element, sees, slopes};
use crate::oracle::attention::ragged::{Query, Ragged};
use crate::oracle::attention::scores::{Terms, factor};
use crate::oracle::attention::sequences::{keys, queries};
use crate::oracle::attention::softmax::weights;
use crate::oracle::attention::tolerance::{Row, tolerance};
use crate::oracle::decisions::{Conversion, Outside};
use crate::oracle::execute::OutsideOfCache;
use crate::oracle::numbers::{finite, read, to_float16};
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
    pub(super) given: Rc<Given>,
    /// What is right: where an element is the same, so is its tolerance.
    pub(super) right: Option<&'a Attended>,
    /// What a call gave: nothing more is computed where that is something else.
    pub(super) made: Option<&'a Tensor>,
}

impl Given {
    pub(super) fn new(query: &Tensor, loaded: Vec<Tensor>, mask: Option<&Tensor>) -> Self {
        let packed = [numbers(query), numbers(&loaded[0]), numbers(&loaded[1]), mask.map(numbers).unwrap_or_default()];
        Self { loaded, packed }
    }

    /// It with queries, keys and values as they are read.
    pub(super) fn read(self: Rc<Self>, inputs: Inputs) -> Rc<Self> {
        match inputs {
            Inputs::T1 => self,
            Inputs::Float16 => {
                let mut packed = self.packed.clone();
                packed[..3].iter_mut().flatten().for_each(|x| *x = to_float16(*x));
                Rc::new(Self { loaded: self.loaded.clone(), packed })
            }
        }
    }
}

impl Attend<'_> {
    /// The output of a legal call.
    pub(super) fn output(&self) -> Result<Attended, Stop> {
        let ragged = self.ragged;
        let (tokens, heads) = (ragged.tokens() as usize, ragged.num_heads);
        let shape = match self.attention.output_shape {
            OutputShape::Right => vec![tokens, heads, ragged.head_dim],
            OutputShape::HeadsFirst => vec![heads, tokens, ragged.head_dim],
            OutputShape::Merged => vec![tokens, heads * ragged.head_dim],
        };
        let count = shape.iter().product();
        let element = if self.attention.output == Output::Float32 { ElementType::Float32 } else { ragged.t1 };
        let (values, tolerance, given) = (vec![0.0; count], vec![0.0; count], Rc::clone(&self.given));
        let mut output = Attended { element, shape, values, tolerance, given };
        if self.made.is_some_and(|made| !output.has_form_of(made)) {
            return Err(Stop::Contradicted);
        }
        let slopes = slopes(self.attention, ragged);
        for b in 0..ragged.len() {
            let sequence = Sequence::new(self, b)?;
            for rows in sequence.rows(slopes.len()) {
                let scores = |&(h, i): &(usize, usize)| sequence.scores(h, i, slopes[h]);
                let scored = rows.iter().map(scores).collect::<Result<Vec<_>, _>>()?;
                for (scored, weights) in scored.iter().zip(sequence.weights(&scored)) {
                    let first = sequence.write(scored, &weights, &mut output);
                    let is_near = |made| first.is_none_or(|first| output.is_near_from(first, ragged.head_dim, made));
                    if !self.made.is_none_or(is_near) {
                        return Err(Stop::Contradicted);
                    }
                }
            }
        }
        Ok(output)
    }
}

/// The elements of a tensor of T1; none if it has another type, like a mask without elements may have.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let element = tensor.element();
    match element {
        ElementType::Float32 | ElementType::Float16 => {
            let count = tensor.bytes().len() / element.align();
            (0..count).map(|i| read(Conversion::Nearest, element, tensor.bytes(), i)).collect()
        }
        ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => Vec::new(),
    }
}

/// A sequence: its rows of `query`, and for each of its keys the position and the row, none for one of zeros.
struct Sequence<'a> {
    attend: &'a Attend<'a>,
    b: usize,
    queries: Vec<usize>,
    keys: Vec<(i64, Option<usize>)>,
}

/// The scores of one query and head, and what they were made of.
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
    fn new(attend: &'a Attend<'a>, b: usize) -> Result<Self, OutsideOfCache> {
        let (ragged, outside) = (attend.ragged, attend.outside);
        let rows = ragged.total_keys();
        let mut of_keys = Vec::new();
        for key in keys(attend.attention, ragged, b) {
            match key.row {
                None => of_keys.push((key.j, None)),
                Some(row) if (0..rows).contains(&row) => of_keys.push((key.j, Some(row as usize))),
                // A slice that ends behind the tensor is cut.
                Some(_) if outside == Outside::Skipped => {}
                Some(row) if outside == Outside::FromEnd && (-rows..0).contains(&row) => {
                    of_keys.push((key.j, Some((row + rows) as usize)));
                }
                Some(_) => return Err(OutsideOfCache),
            }
        }
        let mut of_queries = Vec::new();
        for row in queries(attend.attention, ragged, b) {
            match usize::try_from(row) {
                Ok(token) if row < ragged.tokens() => of_queries.push(token),
                _ if outside == Outside::Skipped => {}
                _ => return Err(OutsideOfCache),
            }
        }
        Ok(Self { attend, b, queries: of_queries, keys: of_keys })
    }

    /// The rows of scores, by head and query: those whose scores of a key belong together.
    fn rows(&self, heads: usize) -> Vec<Vec<(usize, usize)>> {
        let queries = self.queries.len();
        match self.attend.attention.softmax {
            Softmax::OverQueries => (0..heads).map(|h| (0..queries).map(|i| (h, i)).collect()).collect(),
            Softmax::OverHeads => (0..queries).map(|i| (0..heads).map(|h| (h, i)).collect()).collect(),
            _ => (0..heads).flat_map(|h| (0..queries).map(move |i| vec![(h, i)])).collect(),
        }
    }

    /// The scores of a head of a query.
    fn scores(&self, h: usize, i: usize, slope: f64) -> Result<Scored, OutsideOfCache> {
        let Attend { ragged, attention, given, .. } = self.attend;
        let ([queries, keys, ..], token) = (&given.packed, self.queries[i]);
        let (n, m) = (self.queries.len() as i64, ragged.kvlen(self.b));
        let query = &Query { b: self.b, i: i as i64, n, m, h };
        let causal = has_causal_mask(attention, ragged, self.b);
        let (alibi, factor) = (has_alibi(attention, ragged, self.b), factor(attention, ragged));
        let [sums, _] = attention.sums.types(ragged.t1);
        let elements = attention.product_elements.count(ragged.head_dim, attention.n);
        let q = &queries[(token * ragged.num_heads + query.h) * ragged.head_dim..][..elements];
        let mut scored =
            Scored { h, token, terms: Vec::new(), scores: Vec::new(), squares: Vec::new(), heads: Vec::new() };
        for &(j, row) in &self.keys {
            let head = row.map(|row| self.head(row, h)).transpose()?.flatten();
            let (product, squares) = head.map_or((0.0, 0.0), |head| inner_product(q, &keys[head..], sums));
            let hidden = attention.window && j <= query.position() - attention.n as i64;
            let seen = !hidden && sees(attention, ragged, query, j);
            let terms = Terms {
                product,
                factor,
                causal: (causal || hidden).then_some(if seen { 0.0 } else { f64::NEG_INFINITY }),
                alibi: alibi.then(|| bias(attention, ragged, query, slope, j)),
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
        let Attend { ragged, given, .. } = self.attend;
        let (&Ragged { kv_heads, head_dim, .. }, [_, key, value, _]) = (*ragged, &given.packed);
        let head = self.attend.attention.key_head.of(ragged, h);
        let first = (row * kv_heads + head) * head_dim;
        // Keys that are read wrongly may be fewer than kvstarts says.
        let inside = first + head_dim <= key.len().min(value.len());
        match self.attend.outside {
            _ if inside && head < kv_heads => Ok(Some(first)),
            Outside::Flat if inside => Ok(Some(first)),
            Outside::Skipped => Ok(None),
            _ => Err(OutsideOfCache),
        }
    }

    /// What `attn_mask` adds for the key at position `j`.
    fn mask(&self, query: &Query, j: i64) -> Result<Option<f64>, OutsideOfCache> {
        let Attend { ragged, attention, outside, .. } = self.attend;
        let Some(shape) = &ragged.mask else { return Ok(None) };
        let Some(element) = mask_element(attention, ragged, shape, query, j) else { return Ok(None) };
        match usize::try_from(element).ok().and_then(|element| self.attend.given.packed[3].get(element)) {
            Some(&mask) => Ok(Some(mask)),
            None if *outside == Outside::Skipped => Ok(Some(0.0)),
            None => Err(OutsideOfCache),
        }
    }

    /// The weights of scores that belong together.
    fn weights(&self, scored: &[Scored]) -> Vec<Vec<f64>> {
        let Attend { ragged, attention, .. } = self.attend;
        let softmax = |scores: &[f64]| weights(attention, ragged.t1, scores);
        if !matches!(attention.softmax, Softmax::OverQueries | Softmax::OverHeads) {
            return scored.iter().map(|scored| softmax(&scored.scores)).collect();
        }
        let mut weights: Vec<_> = scored.iter().map(|scored| scored.scores.clone()).collect();
        for key in 0..self.keys.len() {
            let scores: Vec<_> = scored.iter().map(|scored| scored.scores[key]).collect();
            weights.iter_mut().zip(softmax(&scores)).for_each(|(weights, weight)| weights[key] = weight);
        }
        weights
    }

    /// Writes the weighted sum of one query and head, and gives its first element; what lies behind the output's end is
    /// left out.
    fn write(&self, scored: &Scored, weights: &[f64], output: &mut Attended) -> Option<usize> {
        let Attend { ragged, attention, given, right, .. } = self.attend;
        let values = &given.packed[2];
        let (head_dim, [of_products, of_values]) = (ragged.head_dim, attention.sums.types(ragged.t1));
        let first = attention.output_heads.place(ragged, scored.token, scored.h) * head_dim;
        if first + head_dim > output.values.len() {
            return None;
        }
        let sees_none = scored.scores.iter().all(|&score| score == f64::NEG_INFINITY);
        let counts = |&key: &usize| attention.adds_hidden_values || scored.scores[key] != f64::NEG_INFINITY;
        let seen: Vec<_> = (0..weights.len()).filter(counts).collect();
        let nothing = match attention.without_keys {
            WithoutKeys::Nan if sees_none => f64::NAN,
            WithoutKeys::NanOfHidden if sees_none && !weights.is_empty() => f64::NAN,
            _ => 0.0,
        };
        let moved = attention.value_head.map_or(0, |of| {
            (of.of(ragged, scored.h) as i64 - attention.key_head.of(ragged, scored.h) as i64) * head_dim as i64
        });
        let value =
            |key: usize, d: usize| scored.heads[key].map_or(0.0, |head| values[(head as i64 + moved) as usize + d]);
        let mut sum = vec![nothing; head_dim];
        for &key in &seen {
            let weight = rounded(of_values, weights[key]);
            for (d, sum) in sum.iter_mut().enumerate() {
                *sum = rounded(of_values, *sum + rounded(of_values, weight * value(key, d)));
            }
        }
        let elements = attention.value_elements.count(head_dim, attention.n);
        let changed = |x| attention.output.changed(output.element, x);
        let written = sum.iter().enumerate().map(|(d, &x)| if d < elements { changed(x) } else { 0.0 });
        let written: Vec<_> = written.collect();
        output.values[first..][..head_dim].copy_from_slice(&written);
        let allowed = &mut output.tolerance[first..][..head_dim];
        if let Some(right) = right
            && right.values.get(first..first + head_dim) == Some(&written[..])
        {
            allowed.copy_from_slice(&right.tolerance[first..][..head_dim]);
            return Some(first);
        }
        if !seen.is_empty() {
            let row = Row {
                t1: ragged.t1,
                head_dim,
                output_type: output.element,
                terms: seen.iter().map(|&key| scored.terms[key]).collect(),
                squares: seen.iter().map(|&key| scored.squares[key] * scored.terms[key].factor.powi(2)).collect(),
                scores: seen.iter().map(|&key| scored.scores[key]).collect(),
                weights: seen.iter().map(|&key| weights[key]).collect(),
                exponentiates: attention.softmax != Softmax::Missing,
                sums_of_products: of_products,
                sums_of_values: of_values,
            };
            tolerance(&row, &sum, |key, d| value(seen[key], d), allowed);
            let none = |(d, x): &(usize, &f64)| *d >= elements || !x.is_finite();
            sum.iter().enumerate().filter(none).for_each(|(d, _)| allowed[d] = 0.0);
        }
        Some(first)
    }
}

impl OutputHeads {
    /// Where a token's head lies in the output, in heads.
    fn place(self, ragged: &Ragged, token: usize, h: usize) -> usize {
        let &Ragged { num_heads, kv_heads, .. } = ragged;
        let group = ragged.group();
        match self {
            Self::TokensFirst => token * num_heads + h,
            Self::HeadsFirst => h * ragged.tokens() as usize + token,
            Self::ByGroup => token * num_heads + h % group * kv_heads + h / group,
        }
    }
}

impl Output {
    /// What becomes of an element before it is rounded to nearest.
    fn changed(self, element: ElementType, x: f64) -> f64 {
        let half = || f16::from_f64(x.abs());
        match self {
            Self::Saturated if element == ElementType::Float16 => finite(element, x),
            Self::Truncated if element == ElementType::Float16 && x.is_finite() => {
                // In the mean it is half a unit less: what is truncated is within that of the exact value.
                let below = f16::from_bits(half().to_bits().saturating_sub(1));
                x - ((half().to_f64() - below.to_f64()) / 2.0).copysign(x)
            }
            Self::ThroughFloat16 => to_float16(x),
            _ => x,
        }
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

/// Rounded to float16, if to a type.
fn rounded(element: Option<ElementType>, x: f64) -> f64 {
    if element.is_some() { to_float16(x) } else { x }
}
