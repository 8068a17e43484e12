//! What takes the network's place: the value that it stores of a token is the token's id, and the key is the same
//! turned to the token's position, as rotary embeddings do. So what the operator returns shows whether each sequence
//! reads its own rows, at their present positions.

use kvcache_manager::op::{ElementType, KeyValueCache, Outputs, Serial};
use kvcache_manager::{Geometry, HostMemory, Rope, Step};
use ndarray::Array3;

use super::Result;

pub const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 40 };
pub const ROPE: Rope = Rope::neox(GEOMETRY.head_dim, 1e4);

/// Keys that were turned several times differ from keys that were turned at once by this much of their length at most.
const ROUNDING: f32 = 1e-5;

/// The next token. What is added is the other way that a fork goes.
pub fn next(last: u32, bias: u32) -> u32 {
    (last * 7 + bias) % 97
}

fn key(token: i64, position: i64) -> [f32; GEOMETRY.head_dim] {
    let mut head = [token as f32; GEOMETRY.head_dim];
    ROPE.rotate(position, &mut head);
    head
}

/// Runs all layers on a step. `expected` are all tokens of its sequences, in the order of its entries.
pub fn run(op: &KeyValueCache, memory: &mut HostMemory<'_>, step: &Step<'_>, expected: &[u32]) -> Result<()> {
    let Geometry { num_layer, num_heads, head_dim, .. } = GEOMETRY;
    let (cache, scale) = memory.tensors();
    let mut layers = op.check_layers(ElementType::Float32, &step.layers_inputs(), cache, scale)?;
    let (tokens, positions) = (step.token_ids(), step.positions());
    let shape = (tokens.len(), num_heads, head_dim);
    let current_key = Array3::from_shape_fn(shape, |(t, _, d)| key(tokens[t], positions[t])[d]);
    let current_value = Array3::from_shape_fn(shape, |(t, ..)| tokens[t] as f32);
    let mut key_out = Array3::<f32>::zeros(layers.output_shape());
    let mut value_out = key_out.clone();
    let mut key_positions = Vec::new();
    step.key_positions_into(&mut key_positions);
    if key_positions.len() != expected.len() {
        return Err("a step has more or fewer rows than its requests have tokens".into());
    }
    for layer_idx in 0..num_layer {
        let outputs = Outputs { key: (&mut key_out).into(), value: (&mut value_out).into() };
        layers.layer(layer_idx, &(&current_key).into(), &(&current_value).into())?.run(outputs, &Serial)?;
        for (row, (&token, &position)) in expected.iter().zip(&key_positions).enumerate() {
            let near = |got: f32, expected: f32| (got - expected).abs() <= ROUNDING * (1.0 + token as f32);
            let own_value = value_out[[row, 0, 0]] == token as f32;
            let own_key = key(token.into(), position).into_iter().enumerate();
            if !own_value || !own_key.into_iter().all(|(d, x)| near(key_out[[row, 0, d]], x)) {
                return Err(format!("row {row} is not token {token} at position {position}").into());
            }
        }
    }
    Ok(())
}
