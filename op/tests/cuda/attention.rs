//! Attention on a device: what is refused, and what decides no bit.

use kvcache_conformance::{Case, Suite, Tensor};
use kvcache_op::cuda::Error;
use kvcache_op::{AttentionAttributes, CacheAttentionAttributes, ElementType, MultiHeadCacheAttention};
use libtest_mimic::Failed;

use crate::call::{Checked, How, Uploaded, write as on_device};
use crate::device::{Buffer, Gpu, Result as OnGpu};
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

/// Scratch memory that is missing, or too small, is refused before anything is launched.
pub fn scratch_is_checked(gpu: &Gpu) -> Result<(), Failed> {
    let cases = cases(Suite::Attention)?;
    let is_long = |case: &&Case| case.name == "large-rows-of-530-keys-f16-f16";
    let call = cases.iter().find(is_long).ok_or("there is no golden case of several KV splits")?.call(0);
    let uploaded = Uploaded::new(gpu, &call, How::default())?;
    for given in [None, Some(100)] {
        let Checked::Attention(checked) = uploaded.check(gpu, &call, None)? else { unreachable!("it attends") };
        let expected = checked.scratch_bytes()?;
        let output = Buffer::untouched(gpu, call.t1(), &checked.output_shape(), 0)?;
        let scratch = Buffer::untouched(gpu, ElementType::Int8, &[100], 0)?;
        let scratch = given.map(|_| on_device(gpu, &scratch));
        let error = checked.launch(on_device(gpu, &output), scratch, &gpu.status, &gpu.stream).unwrap_err();
        assert_eq!(error, Error::Scratch { got: given.unwrap_or(0), expected });
    }
    Ok(())
}

/// The bounds that the caller says decide how work is cut, but no bit: not where `max_seqlen` or `max_kvlen` is too
/// small, so that a decoding step of several pieces has no scratch memory to add them in.
pub fn bounds_decide_no_bit(gpu: &Gpu) -> Result<(), Failed> {
    let cases = cases(Suite::Attention)?;
    let how = How { has_mass: true, ..Default::default() };
    for name in ["large-rows-of-530-keys-f16-f16", "large-window-64"] {
        let case = cases.iter().find(|case| case.name == name).ok_or(format!("there is no golden case {name}"))?;
        let answer = |wrong: Option<(&'static str, i64)>| -> OnGpu<_> {
            let mut call = case.call(0);
            call.inputs.extend(wrong.map(|(bound, value)| (bound, Tensor::of_indices(&[value], &[1]))));
            let uploaded = Uploaded::new(gpu, &call, how)?;
            // The host compares the bound with `kvstarts` where it is given these.
            let rows = call.inputs["kvstarts"].indices().last().map(|&rows| rows as usize);
            let (checked, written) = uploaded.check(gpu, &call, rows)?.with_outputs(gpu, call.t1(), how)?;
            let Checked::Attention(attention) = &checked else { unreachable!("it attends") };
            let scratch_bytes = attention.scratch_bytes()?;
            checked.launch(gpu, &written)?;
            gpu.stream.synchronize()?;
            gpu.nothing_found()?;
            let outputs: Vec<_> = written.outputs.iter().map(|output| output.download(gpu)).collect::<OnGpu<_>>()?;
            Ok((outputs, scratch_bytes))
        };
        let (expected, scratch_bytes) = answer(None)?;
        for wrong in [("max_seqlen", 0), ("max_kvlen", 1)] {
            let (got, smaller) = answer(Some(wrong))?;
            assert!(got == expected, "{name} differs with {wrong:?}");
            assert!(smaller < scratch_bytes, "{name} has as much scratch memory with {wrong:?}");
        }
    }
    Ok(())
}
