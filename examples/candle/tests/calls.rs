//! Calls on candle's tensors against calls on ndarray's, in every format, and what is refused.

use candle_core::{DType, Device, Result, Tensor};
use half::f16;
use kvcache_candle::{key_value_cache, multi_head_cache_attention};
use kvcache_op::schema::{AttentionAttributes, CacheAttentionAttributes};
use kvcache_op::{Attributes, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention, Serial, TensorMut};
use ndarray::{Array3, ArrayD, Ix3, IxDyn};

const MAX_T: usize = 16;

fn indices() -> IndexInputs<'static> {
    IndexInputs {
        seqstarts: (&[0, 3, 4]).into(),
        kvstarts: (&[0, 3, 9]).into(),
        cachestarts: (&[9, 2]).into(),
        start_pos: (&[0, 5]).into(),
        max_seqlen: (&3).into(),
        max_kvlen: (&6).into(),
    }
}

fn current() -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, (4, 2, 32), &Device::Cpu)
}

fn array(tensor: &Tensor) -> Result<Array3<f32>> {
    let elements = tensor.flatten_all()?.to_vec1()?;
    Ok(ArrayD::from_shape_vec(IxDyn(tensor.dims()), elements).unwrap().into_dimensionality::<Ix3>().unwrap())
}

#[test]
fn quantized_caches_are_written_in_place_as_on_ndarray() -> Result<()> {
    for (quant_bit, row_bytes) in [(8, 32), (4, 16)] {
        let op = KeyValueCache::new(Attributes { quant_bit, num_repeat: 2, ..Attributes::default() }).unwrap();
        let (key, value) = (current()?, current()?);
        let cache = Tensor::zeros((MAX_T, 1, 2, 2, row_bytes), DType::U8, &Device::Cpu)?;
        let scale = Tensor::zeros((MAX_T, 1, 2, 2, 4), DType::F16, &Device::Cpu)?;
        let seen_by_a_clone = cache.clone();
        let got = key_value_cache(&op, &key, &value, &indices(), &cache, Some(&scale))?;

        let (expected_key, expected_value) = (array(&key)?, array(&value)?);
        let mut codes = vec![0_u8; MAX_T * 4 * row_bytes];
        let mut scales = ArrayD::<f16>::zeros(IxDyn(&[MAX_T, 1, 2, 2, 4]));
        let inputs =
            Inputs { current_key: (&expected_key).into(), current_value: (&expected_value).into(), indices: indices() };
        let shape = [MAX_T, 1, 2, 2, 32];
        let expected = if quant_bit == 4 {
            op.run_alloc::<f32>(&inputs, TensorMut::int4(shape, &mut codes), Some((&mut scales).into()), &Serial)
        } else {
            let mut bytes = ArrayD::<i8>::zeros(IxDyn(&shape));
            let done = op.run_alloc::<f32>(&inputs, (&mut bytes).into(), Some((&mut scales).into()), &Serial);
            codes = bytes.iter().map(|&code| code as u8).collect();
            done
        };
        let expected = expected.unwrap();
        assert_eq!(array(&got.0)?, expected.0);
        assert_eq!(array(&got.1)?, expected.1);
        assert_eq!(seen_by_a_clone.flatten_all()?.to_vec1::<u8>()?, codes);
        assert_eq!(scale.flatten_all()?.to_vec1::<f16>()?, scales.into_raw_vec_and_offset().0);
        assert!(codes.iter().any(|&code| code != 0));
    }
    Ok(())
}

#[test]
fn half_precision_and_views_with_an_offset() -> Result<()> {
    let op = KeyValueCache::new(Attributes::default()).unwrap();
    let both = Tensor::cat(&[current()?, current()?], 0)?.to_dtype(DType::F16)?;
    let (key, value) = (both.narrow(0, 0, 4)?, both.narrow(0, 4, 4)?);
    let large = Tensor::zeros((MAX_T + 5, 1, 2, 2, 32), DType::F16, &Device::Cpu)?;
    let cache = large.narrow(0, 5, MAX_T)?;
    let (all_keys, all_values) = key_value_cache(&op, &key, &value, &indices(), &cache, None)?;
    assert_eq!(
        all_keys.narrow(0, 0, 3)?.flatten_all()?.to_vec1::<f16>()?,
        key.narrow(0, 0, 3)?.flatten_all()?.to_vec1()?
    );
    assert_eq!(
        all_values.narrow(0, 8, 1)?.flatten_all()?.to_vec1::<f16>()?,
        value.narrow(0, 3, 1)?.flatten_all()?.to_vec1()?
    );
    let stored = large.narrow(0, 5 + 9, 3)?.narrow(2, 0, 1)?.flatten_all()?.to_vec1::<f16>()?;
    assert_eq!(stored, key.narrow(0, 0, 3)?.flatten_all()?.to_vec1()?);
    Ok(())
}

#[test]
fn what_the_operator_refuses_is_an_error_and_nothing_is_written() -> Result<()> {
    let op = KeyValueCache::new(Attributes::default()).unwrap();
    let cache = Tensor::zeros((MAX_T, 1, 2, 2, 32), DType::F32, &Device::Cpu)?;
    let good = current()?;
    let refused = |key: &Tensor, cache: &Tensor, indices: &IndexInputs<'_>, text: &str| {
        let error = key_value_cache(&op, key, &good, indices, cache, None).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(
        &good,
        &cache,
        &IndexInputs { cachestarts: (&[9, 12]).into(), ..indices() },
        "cachestarts is 12 at batch 1",
    );
    refused(&good.to_dtype(DType::F64)?, &cache, &indices(), "current_key is of type F64");
    refused(&good, &cache.t()?, &indices(), "cache is not contiguous");
    refused(&good.transpose(0, 1)?, &cache, &indices(), "current_key is not contiguous");
    let alias = cache.narrow(0, 0, 1)?.reshape((4, 1, 32))?;
    refused(&alias, &cache, &indices(), "shares storage");
    assert_eq!(cache.sum_all()?.to_scalar::<f32>()?, 0.0);

    let attention = AttentionAttributes { num_heads: 4, num_kv_heads: 2, head_dim: 32, ..Default::default() };
    let op =
        MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, cache: Attributes::default() }).unwrap();
    let query = Tensor::zeros((4, 3, 32), DType::F32, &Device::Cpu)?;
    let error = multi_head_cache_attention(&op, &query, &good, &good, &indices(), 0, &cache, None).unwrap_err();
    assert!(error.to_string().contains("query"), "{error}");
    assert_eq!(cache.sum_all()?.to_scalar::<f32>()?, 0.0);
    Ok(())
}
