//! Checks the attributes of the attention.

use kvcache_schema::AttentionAttributes;

use crate::config::ranges;
use crate::error::Error;
use crate::shape_inference::Dim;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionConfig {
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) is_causal: bool,
    pub(crate) is_alibi: bool,
}

impl AttentionConfig {
    /// Checks every attribute: first its own range, then that key heads divide query heads.
    pub(crate) fn new(attributes: &AttentionAttributes) -> Result<Self, Error> {
        ranges(&AttentionAttributes::SPEC, attributes)?;
        let &AttentionAttributes { num_heads, head_dim, is_causal, is_alibi, num_kv_heads } = attributes;
        if num_kv_heads != 0 && num_heads % num_kv_heads != 0 {
            let expected = format!("0 or a divisor of num_heads = {num_heads}");
            return Err(Error::AttributeOutOfRange { name: "num_kv_heads", got: num_kv_heads, expected });
        }
        Ok(Self {
            num_heads: num_heads as usize,
            num_kv_heads: if num_kv_heads == 0 { num_heads } else { num_kv_heads } as usize,
            head_dim: head_dim as usize,
            is_causal: is_causal == 1,
            is_alibi: is_alibi == 1,
        })
    }

    /// The shape of `attn_output`, as far as the shape of a tensor with a row for each of its rows is known.
    pub(crate) fn infer_shape(&self, rows: Option<&[Dim]>) -> [Dim; 3] {
        let tokens = rows.filter(|shape| shape.len() == 3).map_or(Dim::Unknown, |shape| shape[0].clone());
        [tokens, Dim::Known(self.num_heads), Dim::Known(self.head_dim)]
    }
}
