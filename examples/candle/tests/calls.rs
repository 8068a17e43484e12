//! Calls on candle's tensors against calls on ndarray's, and what is refused; the manager's steps over candle's cache.

use candle_core::{DType, Device, Error, Result, Tensor};
use half::f16;
use kvcache_candle::{key_value_cache, multi_head_cache_attention, with_memory};
use kvcache_manager::{Append, CacheSettings, Geometry, Manager, Mode};
use kvcache_op::schema::{AttentionAttributes, CacheAttentionAttributes};
use kvcache_op::{
    Attributes, ElementType, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention, Serial, TensorMut,
};
use ndarray::{Array3, ArrayD, IxDyn};

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
    Ok(Array3::from_shape_vec(tensor.dims3()?, tensor.flatten_all()?.to_vec1()?).unwrap())
}

#[test]
fn quantized_caches_are_written_in_place_as_on_ndarray() -> Result<()> {
    for (quant_bit, element, row_bytes) in [(8, ElementType::Int8, 32), (4, ElementType::Int4, 16)] {
        let op = KeyValueCache::new(Attributes { quant_bit, num_repeat: 2, ..Attributes::default() }).unwrap();
        let (key, value) = (current()?, current()?);
        let cache = Tensor::zeros((MAX_T, 1, 2, 2, row_bytes), DType::U8, &Device::Cpu)?;
        let scale = Tensor::zeros((MAX_T, 1, 2, 2, 4), DType::F16, &Device::Cpu)?;
        let seen_by_a_clone = cache.clone();
        let got = key_value_cache(&op, &key, &value, &indices(), &cache, Some(&scale))?;

        let (key, value) = (array(&key)?, array(&value)?);
        let inputs = Inputs { current_key: (&key).into(), current_value: (&value).into(), indices: indices() };
        let mut codes = vec![0_u8; MAX_T * 4 * row_bytes];
        let mut scales = ArrayD::<f16>::zeros(IxDyn(&[MAX_T, 1, 2, 2, 4]));
        // SAFETY: `codes` are as many as the shape says, and are used again once the call has returned.
        let cache = unsafe { TensorMut::from_raw_parts(element, [MAX_T, 1, 2, 2, 32], codes.as_mut_ptr()) };
        let expected = op.run_alloc::<f32>(&inputs, cache, Some((&mut scales).into()), &Serial).unwrap();
        assert_eq!((array(&got.0)?, array(&got.1)?), expected);
        assert_eq!(seen_by_a_clone.flatten_all()?.to_vec1::<u8>()?, codes);
        assert_eq!(scale.flatten_all()?.to_vec1::<f16>()?, scales.into_raw_vec_and_offset().0);
        assert!(codes.iter().any(|&code| code != 0));
    }
    Ok(())
}

#[test]
fn half_precision_and_views_with_an_offset() -> Result<()> {
    let op = KeyValueCache::new(Attributes::default()).unwrap();
    let current = current()?.to_dtype(DType::F16)?;
    let large = Tensor::zeros((MAX_T + 5, 1, 2, 2, 32), DType::F16, &Device::Cpu)?;
    let (key, _) = key_value_cache(&op, &current, &current, &indices(), &large.narrow(0, 5, MAX_T)?, None)?;
    let expected = current.narrow(0, 0, 3)?.flatten_all()?.to_vec1::<f16>()?;
    assert_eq!(key.narrow(0, 0, 3)?.flatten_all()?.to_vec1::<f16>()?, expected);
    let stored = large.narrow(0, 5 + 9, 3)?.narrow(2, 0, 1)?.flatten_all()?.to_vec1::<f16>()?;
    assert_eq!(stored, expected);
    Ok(())
}

#[test]
fn what_the_operator_refuses_is_an_error_and_nothing_is_written() -> Result<()> {
    let op = KeyValueCache::new(Attributes::default()).unwrap();
    let (good, cache) = (current()?, Tensor::zeros((MAX_T, 1, 2, 2, 32), DType::F32, &Device::Cpu)?);
    let beyond = IndexInputs { cachestarts: (&[9, 12]).into(), ..indices() };
    for (key, cache, indices, text) in [
        (&good, &cache, &beyond, "cachestarts is 12 at batch 1"),
        (&good.to_dtype(DType::F64)?, &cache, &indices(), "current_key is of type F64"),
        (&good, &cache.t()?, &indices(), "cache is not contiguous"),
    ] {
        let error = key_value_cache(&op, key, &good, indices, cache, None).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert_eq!(cache.sum_all()?.to_scalar::<f32>()?, 0.0);
    Ok(())
}

/// Four heads on two of the cache.
fn attention(cache: Attributes) -> MultiHeadCacheAttention {
    let attention =
        AttentionAttributes { num_heads: 4, num_kv_heads: 2, head_dim: 32, ..AttentionAttributes::default() };
    MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, cache }).unwrap()
}

/// Two sequences in pages that the manager assigns, in steps; and each alone, all its tokens in one call.
#[test]
fn sequences_attend_in_the_managers_steps_as_they_do_alone() -> Result<()> {
    const STEPS: [[usize; 2]; 3] = [[5, 2], [1, 1], [3, 1]];
    let geometry = Geometry { num_layer: 1, num_heads: 2, head_dim: 32, max_t: 32 };
    let (cache_type, mode) = (ElementType::Float32, Mode::Paged { page_size: 4 });
    let spec = CacheSettings { geometry, cache_type, mode, ..CacheSettings::default() }.check().map_err(Error::wrap)?;
    let cache = Tensor::zeros(spec.cache_shape().to_vec(), DType::F32, &Device::Cpu)?;
    let mut manager = Manager::new(spec.clone()).map_err(Error::wrap)?;
    let seqs = [manager.create(), manager.create()];
    // The query, the key and the value of all tokens of each sequence.
    let random = |tokens, heads| Tensor::randn(0f32, 1.0, (tokens, heads, 32), &Device::Cpu);
    let tensors = |tokens| Result::Ok([random(tokens, 4)?, random(tokens, 2)?, random(tokens, 2)?]);
    let rows = [tensors(9)?, tensors(4)?];

    let mut attended = [Vec::new(), Vec::new()];
    for new in STEPS {
        let stored = seqs.map(|seq| manager.seq_len(seq).expect("a sequence"));
        let appends = [Append::count(seqs[0], new[0]), Append::count(seqs[1], new[1])];
        let planned = manager.begin_step(&appends).map_err(Error::wrap)?;
        let step = with_memory(&spec, &cache, None, |memory| planned.apply(memory).map_err(Error::wrap))?;
        let order: Vec<usize> = step.order().iter().map(|&append| append as usize).collect();
        let current = |tensor: usize| {
            let own = order.iter().map(|&seq| rows[seq][tensor].narrow(0, stored[seq], new[seq]));
            Tensor::cat(&own.collect::<Result<Vec<_>>>()?, 0)
        };
        let current = [&current(0)?, &current(1)?, &current(2)?];
        let output =
            multi_head_cache_attention(&attention(spec.attributes()), current, &step.layers_inputs(), &cache, None)?;
        for (&seq, &first) in order.iter().zip(step.seqstarts()) {
            attended[seq].push(output.narrow(0, first as usize, new[seq])?);
        }
        step.commit();
    }
    for (rows, attended) in rows.iter().zip(attended) {
        let tokens = rows[0].dim(0)? as i64;
        let starts = [0, tokens];
        let indices = IndexInputs {
            seqstarts: (&starts).into(),
            kvstarts: (&starts).into(),
            cachestarts: (&[2]).into(),
            start_pos: (&[0]).into(),
            max_seqlen: (&tokens).into(),
            max_kvlen: (&tokens).into(),
        };
        let cache = Tensor::zeros((MAX_T, 1, 2, 2, 32), DType::F32, &Device::Cpu)?;
        let alone =
            multi_head_cache_attention(&attention(Attributes::default()), rows.each_ref(), &indices, &cache, None)?;
        assert_eq!(array(&Tensor::cat(&attended, 0)?)?, array(&alone)?);
    }
    Ok(())
}
