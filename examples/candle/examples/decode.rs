//! Two sequences decoded together over one paged cache, which candle's tensors hold and the manager assigns; each must
//! get the tokens that it gets alone, computed at once, without a cache, by candle's own operations.

use candle_core::{D, DType, Device, Error, IndexOp, Result, Tensor};
use kvcache_candle::{multi_head_cache_attention, with_memory};
use kvcache_manager::{Append, CacheSettings, Geometry, Manager, Mode, SeqId};
use kvcache_op::schema::{AttentionAttributes, CacheAttentionAttributes};
use kvcache_op::{Attributes, ElementType, MultiHeadCacheAttention};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 32, max_t: 64 };
const NUM_HEADS: usize = 4;
const WIDTH: usize = NUM_HEADS * GEOMETRY.head_dim;
const VOCABULARY: usize = 50;
const NEW_TOKENS: usize = 8;

/// Attention layers with random weights: rows of a token's hidden state are multiplied from the left.
struct Model {
    embedding: Tensor,
    output: Tensor,
    layers: Vec<[Tensor; 4]>,
}

impl Model {
    fn new() -> Result<Self> {
        let weight = |rows, columns| Tensor::randn(0f32, 1.0 / (WIDTH as f32).sqrt(), (rows, columns), &Device::Cpu);
        let kv_width = GEOMETRY.num_heads * GEOMETRY.head_dim;
        let layer =
            |_| Ok([weight(WIDTH, WIDTH)?, weight(WIDTH, kv_width)?, weight(WIDTH, kv_width)?, weight(WIDTH, WIDTH)?]);
        Ok(Self {
            embedding: Tensor::randn(0f32, 1.0, (VOCABULARY, WIDTH), &Device::Cpu)?,
            output: weight(WIDTH, VOCABULARY)?,
            layers: (0..GEOMETRY.num_layer).map(layer).collect::<Result<_>>()?,
        })
    }

    /// The logits of every token, with an attention of the caller's: query, key and value of a layer to its output.
    fn forward(
        &self,
        tokens: &[u32],
        mut attend: impl FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut hidden = self.embedding.i(&Tensor::new(tokens, &Device::Cpu)?)?;
        for (layer_idx, [query, key, value, output]) in self.layers.iter().enumerate() {
            let heads = |weight: &Tensor| hidden.matmul(weight)?.reshape((tokens.len(), (), GEOMETRY.head_dim));
            let attended = attend(layer_idx, &heads(query)?, &heads(key)?, &heads(value)?)?;
            hidden = (&hidden + attended.reshape((tokens.len(), WIDTH))?.matmul(output)?)?;
            let norm = hidden.sqr()?.mean_keepdim(D::Minus1)?.sqrt()?;
            hidden = hidden.broadcast_div(&norm)?;
        }
        hidden.matmul(&self.output)
    }
}

/// Causal attention of one sequence without a cache.
fn attend_alone(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let (tokens, repeat) = (query.dim(0)?, NUM_HEADS / GEOMETRY.num_heads);
    let heads_first = |rows: &Tensor| rows.transpose(0, 1)?.contiguous();
    let repeated = |rows: &Tensor| {
        let (heads, tokens, head_dim) = rows.dims3()?;
        rows.unsqueeze(1)?.broadcast_as((heads, repeat, tokens, head_dim))?.reshape((heads * repeat, tokens, head_dim))
    };
    let (query, key, value) = (heads_first(query)?, repeated(&heads_first(key)?)?, repeated(&heads_first(value)?)?);
    let scores = (query.matmul(&key.t()?)? / (GEOMETRY.head_dim as f64).sqrt())?;
    let mask: Vec<f32> =
        (0..tokens).flat_map(|i| (0..tokens).map(move |j| if j <= i { 0.0 } else { f32::NEG_INFINITY })).collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&value)?.transpose(0, 1)?.contiguous()
}

/// The token of the largest logit in a row.
fn best(logits: &Tensor, row: usize) -> Result<u32> {
    logits.i(row)?.argmax(D::Minus1)?.to_scalar()
}

/// What all sequences decode together over one cache.
fn decode_together(model: &Model, prompts: &[&[u32]]) -> Result<Vec<Vec<u32>>> {
    let (cache_type, mode) = (ElementType::Float32, Mode::Paged { page_size: 4 });
    let settings = CacheSettings { geometry: GEOMETRY, cache_type, mode, ..CacheSettings::default() };
    let spec = settings.check().map_err(Error::wrap)?;
    let attention = AttentionAttributes {
        num_heads: NUM_HEADS as i64,
        num_kv_heads: GEOMETRY.num_heads as i64,
        head_dim: GEOMETRY.head_dim as i64,
        ..AttentionAttributes::default()
    };
    let operators = (0..GEOMETRY.num_layer)
        .map(|layer_idx| {
            let attention = attention.clone();
            let cache = Attributes { layer_idx: layer_idx as i64, ..spec.attributes() };
            MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, cache })
        })
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(Error::wrap)?;
    let cache = Tensor::zeros(spec.cache_shape().to_vec(), DType::F32, &Device::Cpu)?;
    let mut manager = Manager::new(spec.clone()).map_err(Error::wrap)?;

    let ids: Vec<SeqId> = prompts.iter().map(|_| manager.create()).collect();
    let mut decoded: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    for _ in 0..NEW_TOKENS {
        let stored: Vec<usize> =
            ids.iter().map(|&id| manager.seq_len(id)).collect::<std::result::Result<_, _>>().map_err(Error::wrap)?;
        let appends: Vec<Append<'_>> =
            ids.iter().zip(&decoded).zip(&stored).map(|((&id, all), &from)| Append::tokens(id, &all[from..])).collect();
        let planned = manager.begin_step(&appends).map_err(Error::wrap)?;
        let step = with_memory(&spec, &cache, None, |memory| planned.apply(memory).map_err(Error::wrap))?;
        let tokens: Vec<u32> = step.token_ids().iter().map(|&token| token as u32).collect();
        let logits = model.forward(&tokens, |layer_idx, query, key, value| {
            let indices = step.layers_inputs();
            multi_head_cache_attention(&operators[layer_idx], [query, key, value], &indices, &cache, None)
        })?;
        for (entry, &append) in step.order().iter().enumerate() {
            decoded[append as usize].push(best(&logits, step.seqstarts()[entry + 1] as usize - 1)?);
        }
        step.commit();
    }
    Ok(decoded)
}

fn main() -> Result<()> {
    let model = Model::new()?;
    let prompts: [&[u32]; 3] = [&[3, 1, 4, 1, 5], &[2, 7], &[1, 6, 1, 8, 0, 3, 3, 9, 8]];
    let together = decode_together(&model, &prompts)?;
    for (prompt, tokens) in prompts.iter().zip(&together) {
        println!("{prompt:?} -> {:?}", &tokens[prompt.len()..]);
        let logits = model.forward(tokens, |_, query, key, value| attend_alone(query, key, value))?;
        for i in prompt.len()..tokens.len() {
            assert_eq!(tokens[i], best(&logits, i - 1)?, "the token that a sequence gets alone");
        }
    }
    println!("every sequence got the tokens that it gets alone, computed without a cache");
    Ok(())
}
