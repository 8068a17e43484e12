//! Attention on a device: what is refused.

use kvcache_conformance::{Call, Case, Suite, Tensor};
use kvcache_op::cuda::Error;
use kvcache_op::{AttentionAttributes, CacheAttentionAttributes, ElementType, MultiHeadCacheAttention};
use libtest_mimic::Failed;

use crate::call::{CallOptions, Uploaded, write as on_device};
use crate::device::{Buffer, Gpu};
use crate::golden::cases;

/// Heads that are too long are refused when the kernels are prepared.
pub fn long_heads_are_refused(gpu: &Gpu) -> Result<(), Failed> {
    let attention = AttentionAttributes { num_heads: 1, head_dim: 264, ..Default::default() };
    let op = MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, ..Default::default() })?;
    let error = op.prepare_device(ElementType::Float32, ElementType::Float32, None, &gpu.stream).unwrap_err();
    assert_eq!(error.kind(), "too_large");
    assert_eq!(error.to_string(), "head_dim is 264, expected at most 256 on a CUDA device");
    Ok(())
}

/// Scratch memory that is missing, or too small, is refused before anything is launched; smaller bounds need less.
pub fn scratch_is_checked(gpu: &Gpu) -> Result<(), Failed> {
    let cases = cases(Suite::Attention)?;
    let is_long = |case: &&Case| case.name == "large-rows-of-530-keys-f16-f16";
    let call = cases.iter().find(is_long).ok_or("there is no golden case of several KV splits")?.call(0);
    let uploaded = Uploaded::new(gpu, &call, CallOptions::default())?;
    for given in [None, Some(100)] {
        let checked = uploaded.check(&call, None)?;
        let expected = checked.scratch_bytes(1)?;
        let output = Buffer::untouched(gpu, call.t1(), checked.output_shape(), 0)?;
        let scratch = Buffer::untouched(gpu, ElementType::Int8, &[100], 0)?;
        let scratch = given.map(|_| on_device(gpu, &scratch));
        let error = checked.launch([on_device(gpu, &output)], scratch, &gpu.status, &gpu.stream).unwrap_err();
        assert_eq!(error, Error::Scratch { got: given.unwrap_or(0), expected });
    }
    // The host compares a bound with `kvstarts` where it is given these.
    let rows = call.inputs["kvstarts"].indices().last().map(|&rows| rows as usize);
    let needed = |call: &Call| -> Result<usize, Failed> { Ok(uploaded.check(call, rows)?.scratch_bytes(1)?) };
    for (bound, value) in [("max_seqlen", 0), ("max_kvlen", 1)] {
        let mut bounded = call.clone();
        bounded.inputs.insert(bound, Tensor::of_indices(&[value], &[1]));
        assert!(needed(&bounded)? < needed(&call)?, "as much scratch memory with a {bound} of {value}");
    }
    Ok(())
}
