//! Attention on a device: long heads, sequences of several KV splits, scratch memory.

use kvcache_conformance::backends::{attention_attributes, check_attention, write};
use kvcache_conformance::{Call, Operator, Tensor, Value};
use kvcache_op::cuda::Error;
use kvcache_op::{
    AttentionAttributes, AttentionBackend, Backend, CacheAttentionAttributes, ElementType, MultiHeadCacheAttention,
    Serial,
};
use libtest_mimic::Failed;

use crate::call::{Checked, How, Uploaded, write as on_device};
use crate::device::{Buffer, Gpu, Result as OnGpu, untouched};

/// Heads that are too long are refused when the kernels are prepared.
pub fn long_heads_are_refused(gpu: &Gpu) -> Result<(), Failed> {
    let attention = AttentionAttributes { num_heads: 1, head_dim: 264, ..Default::default() };
    let op = MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, ..Default::default() })?;
    let error = op.prepare_device(ElementType::Float32, ElementType::Float32, None, &gpu.stream).unwrap_err();
    assert_eq!(error.kind(), "too_large");
    assert_eq!(error.to_string(), "head_dim is 264, expected at most 256 on a CUDA device");
    Ok(())
}

/// Two sequences of more keys than one split, one of them with three queries; with a window, a soft cap, a scale and
/// sinks, or without.
fn long_call(max_seqlen: i64, has_variants: bool) -> Call {
    let number = |i: usize| ((i * 2_654_435_761) >> 8) as u16 as f32 / 8192.0 - 4.0;
    let floats = |shape: [usize; 3], seed: usize| {
        let numbers = (0..shape.iter().product()).flat_map(|i| number(i + seed).to_le_bytes());
        Tensor::new(ElementType::Float32, shape.to_vec(), &numbers.collect::<Vec<_>>()).expect("the bytes of its shape")
    };
    let mut attributes = Operator::MultiHeadAttention.attributes();
    attributes.extend([("num_heads", 4), ("num_kv_heads", 2), ("head_dim", 24)]);
    let mut call = Call {
        operator: Operator::MultiHeadAttention,
        attributes,
        floats: Operator::MultiHeadAttention.floats(),
        inputs: [
            ("query", floats([4, 4, 24], 1)),
            ("key", floats([1800, 2, 24], 1000)),
            ("value", floats([1800, 2, 24], 500_000)),
            ("seqstarts", Tensor::of_indices(&[0, 1, 4], &[3])),
            ("kvstarts", Tensor::of_indices(&[0, 1100, 1800], &[3])),
            ("decoding_batches", Tensor::of_indices(&[1], &[1])),
            ("max_seqlen", Tensor::of_indices(&[max_seqlen], &[1])),
            ("max_kvlen", Tensor::of_indices(&[1100], &[1])),
        ]
        .into(),
        cache: None,
        scale: None,
    };
    if has_variants {
        // Each query sees keys of two splits.
        call.attributes.insert("local_window_size", 300);
        call.floats.extend([("scale", 0.5), ("softcap", 3.0)]);
        let sinks = [2.0f32, -1.0, f32::NEG_INFINITY, 9.0].map(f32::to_le_bytes).concat();
        call.inputs
            .insert("head_sink", Tensor::new(ElementType::Float32, vec![4], &sinks).expect("the bytes of its shape"));
    }
    call
}

pub fn long_sequences(gpu: &Gpu) -> Result<(), Failed> {
    [false, true].into_iter().try_for_each(|has_variants| attend_to_long_sequences(gpu, has_variants))
}

/// Whether each split is a unit of work or a block goes over all of them: the same bits, close to the CPU's.
fn attend_to_long_sequences(gpu: &Gpu, has_variants: bool) -> Result<(), Failed> {
    let how = How { has_mass: true, ..How::default() };
    // All queries are decoding steps, or those of the first sequence only.
    let run = |max_seqlen| {
        let call = long_call(max_seqlen, has_variants);
        Uploaded::new(gpu, &call, how)?.run(gpu, &call, how)
    };
    let got = run(3)?;
    assert!(got == run(0)?, "the bits depend on how the work is cut");
    gpu.nothing_found()?;

    let call = long_call(3, has_variants);
    let backends = (AttentionBackend::Reference, Backend::Reference);
    let checked =
        check_attention(&attention_attributes(&call.attributes, &call.floats), &call.inputs, [None, None], backends)?;
    let zeros = |shape: &[usize]| Tensor::zeros(ElementType::Float32, shape.to_vec()).expect("it fits in memory");
    let (mut output, mut mass) = (zeros(&checked.output_shape()), zeros(&checked.mass_shape()));
    checked.run_with_mass(write(&mut output), write(&mut mass), &Serial)?;
    let floats = |tensor: &Tensor| -> Vec<f32> {
        tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    for (got, expected) in got.iter().zip([&output, &mass]) {
        let difference = floats(got).into_iter().zip(floats(expected)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 2e-5, "{difference} from the reference");
    }
    Ok(())
}

/// Whether a call's output is the CPU's, but for a hundredth of the largest number.
pub fn is_near_the_cpu(call: &Call, got: &Tensor) -> OnGpu<bool> {
    let (mut cache, mut scale) = (call.cache.clone(), call.scale.clone());
    let (attributes, backends) = (attention_attributes(&call.attributes, &call.floats), Default::default());
    let checked = check_attention(&attributes, &call.inputs, [cache.as_mut(), scale.as_mut()], backends)?;
    let mut output = untouched(call.t1(), &checked.output_shape());
    checked.run(write(&mut output), &Serial)?;
    let floats = |tensor| (0..Value::count(tensor)).map(|i| Value::at(tensor, i).float().unwrap_or(f64::NAN));
    let largest = floats(&output).map(f64::abs).fold(0.0, f64::max);
    Ok(floats(got).zip(floats(&output)).all(|(got, expected)| (got - expected).abs() <= 0.01 * largest))
}

/// Scratch memory that is missing, or too small, is refused before anything is launched.
pub fn scratch_is_checked(gpu: &Gpu) -> Result<(), Failed> {
    let call = long_call(3, false);
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
