//! The reference kernel: the specification as code, safe, scalar and single-threaded. It is never optimized.

use std::mem::MaybeUninit;

use bytemuck::bytes_of;
use kvcache_kernels::{Workers, float_type, read_floats};
use kvcache_schema::ElementType;
use kvcache_simd::{Float, hadamard};

use crate::masking::{alibi_slopes, visible_keys};
use crate::problem::{AttentionGeometry, AttentionKernel, AttentionProblem, RaggedRows};
use crate::rows::{Row, Rows};
use crate::tensors::Tensors;

const KEY: usize = 0;
const VALUE: usize = 1;

/// The kernel that reads like the specification, query by query and head by head.
///
/// Everything is float32, and every sum is in order: an inner product over `head_dim` from the first element, the sums
/// of weights and of weighted values over the keys from the first token. A query's result is made of its own sequence's
/// rows alone, and of none after those that it sees, so it depends on nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionReference;

impl AttentionKernel for AttentionReference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn attend(
        &self,
        problem: &AttentionProblem<'_>,
        attn_output: &mut [MaybeUninit<u8>],
        mass: Option<&mut [MaybeUninit<f32>]>,
        _: &dyn Workers,
    ) {
        let mut mass = mass.map(|mass| problem.zeroed_mass(mass));
        let AttentionGeometry { batch, num_heads, head_dim, t1, .. } = *problem.geometry();
        if problem.total_seqlen() == 0 || num_heads == 0 || head_dim == 0 {
            return; // and the others may be any number, whose memory there is not
        }
        let Tensors { geometry, indices, query, mask, mut rows } = problem.tensors();
        let (slopes, sinks) = (alibi_slopes(num_heads), problem.sinks());
        let head_len = t1.byte_len(head_dim);
        let (mut q, mut result) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for b in 0..batch {
            let RaggedRows { queries, keys } = indices.sequence(b);
            let (n, m) = (queries.len(), keys.len());
            for (i, token) in queries.enumerate() {
                let seen = visible_keys(&geometry, b, n, m, i);
                for (h, slope) in slopes.iter().enumerate() {
                    let at = (token * num_heads + h) * head_len;
                    read_floats(t1, &query[at..][..head_len], &mut q);
                    hadamard(&mut q, problem.rotation_order());
                    let mut bias = vec![0.0; seen.len()];
                    if let Some(mask) = &mask {
                        mask.read(h, token, keys.start + seen.start, &mut bias);
                    }
                    if geometry.is_alibi {
                        for (j, bias) in seen.clone().zip(&mut bias) {
                            *bias += slope * (j as i64 - (m + i - n) as i64) as f32;
                        }
                    }
                    let kv_h = h / (num_heads / geometry.num_kv_heads);
                    let row = Row { kv: KEY, b, start: keys.start, t: seen.start, h: kv_h };
                    let sink = sinks.get(h).copied().unwrap_or(f32::NEG_INFINITY);
                    let probabilities = attend(&geometry, &q, &mut rows, row, &bias, sink, &mut result);
                    if let Some(mass) = &mut mass {
                        let of_keys = &mut mass[h * problem.total_kvlen() + keys.start + seen.start..];
                        of_keys.iter_mut().zip(probabilities).for_each(|(sum, probability)| *sum += probability);
                    }
                    write(&result, t1, &mut attn_output[at..][..head_len]);
                }
            }
        }
    }
}

/// The output of query `q` over as many keys and values, from the token of `row` on, as there are elements in `bias`.
/// Gives each key's probability.
fn attend(
    geometry: &AttentionGeometry,
    q: &[f32],
    rows: &mut Rows<'_>,
    row: Row,
    bias: &[f32],
    sink: f32,
    result: &mut [f32],
) -> Vec<f32> {
    let &AttentionGeometry { scale, softcap, .. } = geometry;
    let mut values = vec![0.0; q.len()];
    let scores: Vec<f32> = bias
        .iter()
        .enumerate()
        .map(|(t, &bias)| {
            if bias == f32::NEG_INFINITY {
                return bias; // whatever the key: NaN does not reach whom a mask hides it from
            }
            rows.read(Row { kv: KEY, t: row.t + t, ..row }, &mut values);
            let product = q.iter().zip(&values).fold(0.0, |sum, (q, k)| sum + q * k);
            let score = product * scale;
            bias + if softcap == 0.0 { score } else { softcap * (score / softcap).tanh() }
        })
        .collect();
    // A NaN is never the largest, but makes its weight NaN and so everything.
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // A sink is nothing to a query that sees no key.
    let sink = if largest == f32::NEG_INFINITY { largest } else { sink };
    let largest = largest.max(sink);
    result.fill(0.0);
    let mut total = 0.0;
    let mut weights = vec![0.0; scores.len()];
    for (t, &score) in scores.iter().enumerate() {
        if score == f32::NEG_INFINITY {
            continue;
        }
        let weight = (score - largest).exp();
        weights[t] = weight;
        total += weight;
        rows.read(Row { kv: VALUE, t: row.t + t, ..row }, &mut values);
        for (sum, value) in result.iter_mut().zip(&values) {
            *sum += weight * value;
        }
    }
    if sink != f32::NEG_INFINITY {
        total += (sink - largest).exp();
    }
    // Nothing seen: zeros.
    if total != 0.0 {
        result.iter_mut().for_each(|sum| *sum /= total);
        let seen = weights.iter_mut().zip(&scores).filter(|(_, score)| **score != f32::NEG_INFINITY);
        seen.for_each(|(weight, _)| *weight /= total);
    }
    weights
}

/// Writes numbers, rounded to T1.
fn write(values: &[f32], t1: ElementType, output: &mut [MaybeUninit<u8>]) {
    float_type!(t1, T => {
        for (bytes, &x) in output.chunks_exact_mut(size_of::<T>()).zip(values) {
            bytes.write_copy_of_slice(bytes_of(&<T as Float>::from_f32(x)));
        }
    });
}
