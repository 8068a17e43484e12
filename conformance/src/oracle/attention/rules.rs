//! The rules of a legal call of the attention operators, in stages: those of a stage can be asked only where those
//! before hold. What `KeyValueCache` refuses of a call over a cache is asked after them.

use kvcache_schema::{AttentionAttributes, ElementType};

use crate::attention::{Operator, Step};
use crate::oracle::call::{indices, number};
use crate::oracle::rules::{Broken, Legal};

/// Whether a call of an attention operator is legal, as far as its own rules go.
pub(super) fn legal(operator: Operator, attributes: &AttentionAttributes, t1: ElementType, step: &Step) -> Legal {
    let mut broken = Broken::default();
    let input = |name: &str| step.input(name);
    // Where keys are packed, KeyValueCache checks neither keys nor indices.
    let packed = operator == Operator::MultiHeadAttention;
    let [key, value] = if packed { ["key", "value"] } else { ["current_key", "current_value"] };
    let own_indices: &[&str] = match packed {
        true => &["seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen"],
        false => &["decoding_batches"],
    };
    let mask = step.inputs.get("attn_mask").filter(|mask| !mask.shape().contains(&0));

    broken.attributes(&AttentionAttributes::SPEC, attributes);
    let &AttentionAttributes { num_heads, num_kv_heads, head_dim, .. } = attributes;
    let divides = num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads == 0;
    broken.unless(divides, "attribute_out_of_range");
    broken.stage()?;

    // T1 has scores.
    broken.unless(t1.is_float(), "attention_type");
    broken.stage()?;
    [input("query"), input(key), input(value)].into_iter().chain(mask).for_each(|tensor| broken.element(tensor, t1));
    own_indices.iter().for_each(|name| broken.element(input(name), ElementType::Int64));
    broken.stage()?;

    [input("query"), input(key), input(value)].into_iter().for_each(|tensor| broken.rank(tensor, &[3]));
    mask.into_iter().for_each(|mask| broken.rank(mask, &[2, 3]));
    for name in own_indices {
        broken.rank(input(name), if name.ends_with("starts") { &[1] } else { &[0, 1] });
    }
    broken.stage()?;

    // Heads are those of the attributes, rows those of the other tensors.
    let size = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
    let kv_heads = size(if num_kv_heads == 0 { num_heads } else { num_kv_heads });
    let rows = |name: &str| input(name).shape()[0];
    // Over a cache, a query has the rows of the current tokens; packed keys have rows of their own.
    let tokens = rows(if packed { "query" } else { key });
    broken.shape(input("query").shape(), &[tokens, size(num_heads), size(head_dim)]);
    broken.shape(input(key).shape(), &[rows(key), kv_heads, size(head_dim)]);
    if packed {
        broken.shape(input(value).shape(), input(key).shape());
        let entries = rows("seqstarts");
        broken.unless(entries > 0, "shape_mismatch");
        broken.shape(input("kvstarts").shape(), &[entries]);
        broken.shape(input("max_seqlen").shape(), &[1]);
        broken.shape(input("max_kvlen").shape(), &[1]);
    }
    if let Some(mask) = mask {
        let (planes_and_rows, expected) = (&mask.shape()[..mask.shape().len() - 1], [size(num_heads), rows("query")]);
        broken.shape(planes_and_rows, &expected[2 - planes_and_rows.len()..]);
    }
    broken.shape(input("decoding_batches").shape(), &[1]);
    broken.stage()?;

    let (seqstarts, kvstarts) = (indices(input("seqstarts")), indices(input("kvstarts")));
    if packed {
        for (starts, of) in [(&seqstarts, "query"), (&kvstarts, "key")] {
            broken.rising(starts);
            broken.total(starts, rows(of));
        }
        broken.stage()?;
        broken.bound(number(input("max_seqlen")), &seqstarts);
        broken.bound(number(input("max_kvlen")), &kvstarts);
    }
    // A mask has a column for every key.
    let keys = kvstarts.last().copied().unwrap_or_default();
    let width = mask.and_then(|mask| mask.shape().last());
    broken.unless(width.is_none_or(|&width| i128::from(keys) <= width as i128), "mask_too_small");
    broken.unless(number(input("decoding_batches")) >= 0, "decoding_batches_negative");
    broken.stage()
}
