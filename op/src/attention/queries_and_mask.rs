//! Checks what both attention operators have: queries, mask, sinks and `decoding_batches`.

use kvcache_attention::{AttentionGeometry, Mask};
use kvcache_schema::multi_head_attention::{MASS, OUTPUTS};
use kvcache_schema::{ElementType, multi_head_attention};
use smallvec::smallvec;

use crate::checked::{ExpectedOutputs, Output};
use crate::config::AttentionConfig;
use crate::error::Error;
use crate::operands::Operand;
use crate::tensor::{Shape, TensorRef};
use crate::validate::{AliasCheck, equal_type, indices, shapes};

/// Checks that T1, the type of the tensor called `input`, has scores.
pub(crate) fn t1(input: &'static str, got: ElementType) -> Result<(), Error> {
    if multi_head_attention::T1.contains(&got) { Ok(()) } else { Err(Error::AttentionType { input, got }) }
}

/// Checks type and shape of `query`, but not its number of rows; gives that.
pub(crate) fn query(config: &AttentionConfig, t1: ElementType, query: &TensorRef<'_>) -> Result<usize, Error> {
    equal_type("query", query.element, t1)?;
    let [tokens, ..] = shapes::rank::<3>("query", &query.shape)?;
    shapes::equal("query", &query.shape, &[tokens, config.num_heads, config.head_dim], "by num_heads and head_dim")?;
    Ok(tokens)
}

/// Checks that `query`, whose type and other axes have been checked, has a row for each token; and its memory.
pub(crate) fn query_rows(query: &TensorRef<'_>, tokens: usize, aliases: &mut AliasCheck) -> Result<(), Error> {
    let expected = [&[tokens], &query.shape[1..]].concat();
    shapes::equal("query", &query.shape, &expected, "the number of current tokens, seqstarts[B]")?;
    aliases.read("query", query).map(drop)
}

/// Checks that `current_key` has the heads of the attention.
pub(crate) fn current_heads(config: &AttentionConfig, current_key: &Shape, tokens: usize) -> Result<(), Error> {
    let expected = [tokens, config.num_kv_heads, config.head_dim];
    shapes::equal("current_key", current_key, &expected, "by num_kv_heads and head_dim")
}

/// What a call attends with, whose rows and columns have been checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) geometry: AttentionGeometry,
    pub(crate) attn_mask: Option<Mask>,
}

impl Attention {
    /// Checks the mask of a call of that many rows of queries and of keys, whose other inputs have been checked.
    pub(crate) fn check(
        config: &AttentionConfig,
        (t1, batch): (ElementType, usize),
        [tokens, total_kvlen]: [usize; 2],
        decoding_batches: usize,
        attn_mask: Option<&Operand<'_>>,
        aliases: &mut AliasCheck,
    ) -> Result<Self, Error> {
        let attn_mask = attn_mask.map(|mask| &mask.tensor);
        let attn_mask = mask(config, t1, attn_mask, tokens, total_kvlen, aliases)?;
        let geometry = AttentionGeometry {
            batch,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            t1,
            is_causal: config.is_causal,
            is_alibi: config.is_alibi,
            decoding_batches,
            scale: config.scale,
            softcap: config.softcap,
            local_window_size: config.local_window_size,
        };
        Ok(Self { geometry, attn_mask })
    }

    /// The outputs of a call of that many rows of queries and of keys.
    pub(crate) fn outputs(&self, [tokens, total_kvlen]: [usize; 2]) -> ExpectedOutputs {
        let &AttentionGeometry { num_heads, head_dim, t1, .. } = &self.geometry;
        let reason = "the shape (seqstarts[B], Hq, Dh) of this call";
        let attn_output = Output::new(OUTPUTS[0], t1, [tokens, num_heads, head_dim], reason);
        let reason = "the shape (Hq, kvstarts[B]) of this call";
        let mass = Output::new(MASS, ElementType::Float32, [num_heads, total_kvlen], reason);
        smallvec![attn_output, Output { optional: true, ..mass }]
    }
}

/// The mask, if it is given: a tensor without elements is none, whatever its type and rank. Checks type, shape and
/// memory.
fn mask(
    config: &AttentionConfig,
    t1: ElementType,
    mask: Option<&TensorRef<'_>>,
    tokens: usize,
    total_kvlen: usize,
    aliases: &mut AliasCheck,
) -> Result<Option<Mask>, Error> {
    let Some(mask) = mask.filter(|mask| !mask.shape.contains(&0)) else { return Ok(None) };
    equal_type("attn_mask", mask.element, t1)?;
    let width = mask.shape.last().copied().unwrap_or_default();
    let per_head = mask.shape.len() == 3;
    let expected: &[usize] = if per_head { &[config.num_heads, tokens, width] } else { &[tokens, width] };
    shapes::equal("attn_mask", &mask.shape, expected, "a row for each row of query, or that for each query head")?;
    if width < total_kvlen {
        return Err(Error::MaskTooSmall { shape: mask.shape.clone(), got: width, expected: total_kvlen });
    }
    aliases.read("attn_mask", mask)?;
    Ok(Some(Mask { data: mask.data, width, per_head }))
}

/// The sinks, if they are given: a tensor without elements is none, whatever its type and rank. Checks type, shape and
/// memory.
pub(crate) fn head_sink(
    config: &AttentionConfig,
    t1: ElementType,
    head_sink: Option<&TensorRef<'_>>,
    aliases: &mut AliasCheck,
) -> Result<Option<*const u8>, Error> {
    const NAME: &str = "head_sink";
    let Some(sinks) = head_sink.filter(|sinks| !sinks.shape.contains(&0)) else { return Ok(None) };
    equal_type(NAME, sinks.element, t1)?;
    shapes::equal(NAME, &sinks.shape, &[config.num_heads], "by num_heads")?;
    aliases.read(NAME, sinks)?;
    Ok(Some(sinks.data))
}

/// Checks type, shape and memory of `decoding_batches`, then its value; gives it, B at most.
pub(crate) fn decoding_batches(tensor: &TensorRef<'_>, batch: usize, aliases: &mut AliasCheck) -> Result<usize, Error> {
    const NAME: &str = "decoding_batches";
    equal_type(NAME, tensor.element, ElementType::Int64)?;
    shapes::scalar_or_one_axis(NAME, &tensor.shape)?;
    shapes::equal(NAME, &tensor.shape, &[1][..tensor.shape.len()], "a single number")?;
    aliases.read(NAME, tensor)?;
    let got = indices::values(tensor)[0];
    usize::try_from(got).map(|got| got.min(batch)).map_err(|_| Error::DecodingBatchesNegative { got })
}
