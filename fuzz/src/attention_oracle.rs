//! What attention gives, by the specification and in float64. It shares no code with the kernels.

use crate::call::{Call, Ended, How, Operator};
use crate::operand::{Operand, floats};

/// The output of a legal call.
pub fn attention(call: &Call) -> Vec<f64> {
    let number = |name| call.attribute(name) as usize;
    let (num_heads, head_dim) = (number("num_heads"), number("head_dim"));
    let num_kv_heads = if number("num_kv_heads") == 0 { num_heads } else { number("num_kv_heads") };
    let operand = |name| call.operand(name).unwrap_or_else(|| unreachable!("{name} is always given"));
    let query = operand("query");
    let queries = floats(query.element, &query.bytes);
    let [keys, values] = keys_and_values(call).map(|bytes| floats(query.element, &bytes));
    let starts = |name| -> Vec<usize> { operand(name).values().into_iter().map(|start| start as usize).collect() };
    let (seqstarts, kvstarts) = (starts("seqstarts"), starts("kvstarts"));
    let decoding = operand("decoding_batches").values()[0] as usize;
    let mask = call.operand("attn_mask").filter(|mask| !mask.shape.contains(&0));
    let mask = mask.map(|mask| (floats(mask.element, &mask.bytes), &mask.shape[..]));
    let slopes = slopes(num_heads);

    let row = |rows: &[f32], heads: usize, token: usize, h: usize| -> Vec<f64> {
        rows[(token * heads + h) * head_dim..][..head_dim].iter().map(|&x| x.into()).collect()
    };
    let mut output = Vec::new();
    for token in 0..seqstarts[seqstarts.len() - 1] {
        let b = seqstarts.partition_point(|&start| start <= token) - 1;
        let (n, m) = (seqstarts[b + 1] - seqstarts[b], kvstarts[b + 1] - kvstarts[b]);
        // The key of the query's own token.
        let own = (m + token - seqstarts[b]) as i64 - n as i64;
        for (h, slope) in slopes.iter().enumerate() {
            let kv = h / (num_heads / num_kv_heads);
            let q = row(&queries, num_heads, token, h);
            let mut seen = Vec::new();
            for j in 0..m {
                let after = j as i64 > own;
                let causal = call.attribute("is_causal") == 1 && n > 1 && b >= decoding;
                if after && (causal || call.attribute("is_alibi") == 1) {
                    continue;
                }
                let mut bias = 0.0;
                if let Some((mask, shape)) = &mask {
                    let [rows, width] = [shape.len() - 2, shape.len() - 1].map(|axis| shape[axis]);
                    let plane = if shape.len() == 3 { h } else { 0 };
                    bias += f64::from(mask[(plane * rows + token) * width + kvstarts[b] + j]);
                }
                if call.attribute("is_alibi") == 1 {
                    bias += slope * (j as i64 - own) as f64;
                }
                if bias > f64::NEG_INFINITY {
                    let product: f64 =
                        q.iter().zip(row(&keys, num_kv_heads, kvstarts[b] + j, kv)).map(|(q, k)| q * k).sum();
                    seen.push((product / (head_dim as f64).sqrt() + bias, kvstarts[b] + j));
                }
            }
            let most = seen.iter().fold(f64::NEG_INFINITY, |most, &(score, _)| most.max(score));
            let weights: Vec<(f64, usize)> = seen.into_iter().map(|(score, j)| ((score - most).exp(), j)).collect();
            let total: f64 = weights.iter().map(|(weight, _)| weight).sum();
            let mut sums = vec![0.0; head_dim];
            for (weight, j) in weights {
                sums.iter_mut().zip(row(&values, num_kv_heads, j, kv)).for_each(|(sum, v)| *sum += weight / total * v);
            }
            output.extend(sums);
        }
    }
    output
}

/// The packed keys and values of a call.
fn keys_and_values(call: &Call) -> [Vec<u8>; 2] {
    let operands = || call.operands.iter().cloned();
    if call.operator == Operator::MultiHeadAttention {
        return ["key", "value"].map(|name| operands().find(|operand| operand.name == name).expect("given").bytes);
    }
    let of_attention = ["num_heads", "head_dim", "is_causal", "is_alibi", "num_kv_heads"];
    let attributes = call.attributes.iter().filter(|(name, _)| !of_attention.contains(name)).copied().collect();
    let is_stored = |operand: &Operand| !["query", "decoding_batches", "attn_mask"].contains(&operand.name);
    let stored = operands().filter(is_stored).collect();
    let stored = Call { operator: Operator::KeyValueCache, attributes, operands: stored, overlap: None };
    let Ended::Done(after) = stored.run(How::REFERENCE) else { panic!("the call of the cache is not legal") };
    after.outputs.try_into().expect("keys and values")
}

/// ALiBi's slope of each query head.
fn slopes(num_heads: usize) -> Vec<f64> {
    let mut c = 1;
    while 2 * c <= num_heads {
        c *= 2;
    }
    let slope = |h: usize| if h < c { -8.0 * (h + 1) as f64 } else { -4.0 * (2 * (h - c) + 1) as f64 };
    (0..num_heads).map(|h| (slope(h) / c as f64).exp2()).collect()
}
