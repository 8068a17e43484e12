//! The attention operators where golden cases cannot look: the layers of a step, and what is refused. (What the
//! caller's memory may not be is in `memory`.)

use half::f16;
use kvcache_op::{
    AttentionAttributes, AttentionBackend, AttentionInputs, Attributes, Backend, CacheAttentionAttributes,
    CacheAttentionInputs, Dim, ElementType, Error, IndexInputs, Inputs, MultiHeadAttention, MultiHeadCacheAttention,
    Serial, TensorMut, TensorRef,
};
use ndarray::{Array2, Array3, Array5, Ix3, s};

/// Four query heads on two, head_dim 8, three layers.
fn attributes(layer_idx: i64) -> CacheAttentionAttributes {
    CacheAttentionAttributes {
        attention: AttentionAttributes { num_heads: 4, head_dim: 8, num_kv_heads: 2, ..Default::default() },
        cache: Attributes { num_layer: 3, layer_idx, ..Attributes::default() },
    }
}

fn numbers(shape: (usize, usize, usize), layer_idx: i64) -> Array3<f32> {
    Array3::from_shape_fn(shape, |(t, h, d)| {
        ((t * 31 + h * 17 + d * 7 + layer_idx as usize * 13) % 23) as f32 / 8.0 - 1.0
    })
}

/// A decode step after three tokens beside a prompt of two.
fn indices() -> IndexInputs<'static> {
    IndexInputs {
        seqstarts: (&[0, 1, 3]).into(),
        kvstarts: (&[0, 4, 6]).into(),
        cachestarts: (&[1, 6]).into(),
        start_pos: (&[3, 0]).into(),
        max_seqlen: (&2).into(),
        max_kvlen: (&4).into(),
    }
}

fn inputs<'a>(query: &'a Array3<f32>, current: &'a Array3<f32>) -> CacheAttentionInputs<'a> {
    CacheAttentionInputs {
        query: query.into(),
        stored: Inputs { current_key: current.into(), current_value: current.into(), indices: indices() },
        decoding_batches: (&1).into(),
        attn_mask: None,
        head_sink: None,
    }
}

fn cache() -> Array5<f32> {
    Array5::from_shape_fn((9, 3, 2, 2, 8), |(t, layer, kv, h, d)| ((t + layer + kv + h + d) % 5) as f32 / 4.0)
}

#[test]
fn illegal_types_are_told_which_would_be_legal_here() {
    use ElementType::{Float16, Float32, Int8};
    let op = MultiHeadCacheAttention::new(attributes(0)).unwrap();
    let error = op.check_types(Float32, Float32, Float32, Int8, None).unwrap_err();
    assert_eq!(error.kind(), "illegal_types");
    let message = error.to_string();
    let floats = "float32 x float32, float32 x float16, float16 x float32, float16 x float16, bfloat16 x bfloat16";
    assert!(message.ends_with(&format!("expected one of {floats}")), "{message}");
    assert_eq!(op.check_types(Float16, Float16, Float16, Float32, None), Ok(()));
}

#[test]
fn the_layers_of_a_step_are_the_calls_of_each() {
    let mut expected_cache = cache();
    let mut step_cache = cache();
    let mask = Array2::from_shape_fn((3, 7), |(t, column)| (t + column) as f32 / 4.0);
    let op = MultiHeadCacheAttention::new(attributes(0)).unwrap();
    let (mask, decoding) = (TensorRef::from(&mask), TensorRef::from(&1));
    let mut layers = op
        .check_layers(ElementType::Float32, &indices(), &decoding, Some(&mask), (&mut step_cache).into(), None)
        .unwrap();
    for layer_idx in [2, 0, 1, 1] {
        let (query, current) = (numbers((3, 4, 8), layer_idx), numbers((3, 2, 8), layer_idx));
        let one = MultiHeadCacheAttention::new(attributes(layer_idx)).unwrap();
        let inputs = CacheAttentionInputs { attn_mask: Some(mask.clone()), ..inputs(&query, &current) };
        let call = one.check(&inputs, (&mut expected_cache).into(), None).unwrap();
        let [expected]: [Array3<f32>; 1] = call.run_alloc(&Serial).unwrap();
        let current = (&current).into();
        let call = layers.layer(layer_idx as usize, &(&query).into(), &current, &current).unwrap();
        assert_eq!(call.output_shape(), [3, 4, 8]);
        assert_eq!(call.run_alloc::<f32, Ix3, 1>(&Serial).unwrap(), [expected]);
    }
    let (query, current) = (numbers((3, 4, 8), 0), numbers((3, 2, 8), 0));
    let (query, current) = (TensorRef::from(&query), TensorRef::from(&current));
    let error = layers.layer(3, &query, &current, &current).unwrap_err();
    assert!(matches!(error, Error::AttributeOutOfRange { name: "layer_idx", got: 3, .. }), "{error}");
    let error = layers.layer(0, &current, &current, &current).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { input: "query", axis: 1, got: 2, expected: 4, .. }), "{error}");
    let error = layers.layer(0, &query, &query, &current).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { input: "current_key", axis: 1, .. }), "{error}");
    let short = numbers((2, 4, 8), 0);
    let error = layers.layer(0, &(&short).into(), &current, &current).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { input: "query", axis: 0, got: 2, expected: 3, .. }), "{error}");
    assert_eq!(step_cache, expected_cache);
}

/// What each layer of a step attends to beside its keys is the layer's own.
#[test]
fn a_layer_has_its_own_sinks() {
    let (query, current, sinks) = (numbers((3, 4, 8), 0), numbers((3, 2, 8), 0), ndarray::arr1(&[0.5, -1.0, 2.0, 0.0]));
    let op = MultiHeadCacheAttention::new(attributes(0)).unwrap();
    let inputs = CacheAttentionInputs { head_sink: Some((&sinks).into()), ..inputs(&query, &current) };
    let expected: [Array3<f32>; 1] =
        op.check(&inputs, (&mut cache()).into(), None).unwrap().run_alloc(&Serial).unwrap();
    let (mut cache, query, current) = (cache(), (&query).into(), (&current).into());
    let mut layers =
        op.check_layers(ElementType::Float32, &indices(), &(&1).into(), None, (&mut cache).into(), None).unwrap();
    let with_sinks = layers.layer_with_sinks(0, &query, &current, &current, Some(&(&sinks).into())).unwrap();
    assert_eq!(with_sinks.run_alloc::<f32, Ix3, 1>(&Serial).unwrap(), expected);
    let without = layers.layer(0, &query, &current, &current).unwrap().run_alloc::<f32, Ix3, 1>(&Serial).unwrap();
    assert!(without != expected);
    let three = ndarray::arr1(&[0.0f32; 3]);
    let error = layers.layer_with_sinks(0, &query, &current, &current, Some(&(&three).into())).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { input: "head_sink", axis: 0, got: 3, expected: 4, .. }), "{error}");
    let halves = ndarray::arr1(&[f16::ZERO; 4]);
    let error = layers.layer_with_sinks(0, &query, &current, &current, Some(&(&halves).into())).unwrap_err();
    assert!(matches!(error, Error::TypeMismatch { input: "head_sink", .. }), "{error}");
}

#[test]
fn variants_have_ranges() {
    let refused = |change: fn(&mut AttentionAttributes)| {
        let mut attributes = attributes(0).attention;
        change(&mut attributes);
        let error = MultiHeadAttention::new(attributes).unwrap_err();
        assert_eq!(error.kind(), "attribute_out_of_range");
        error.to_string()
    };
    let message = refused(|attributes| attributes.local_window_size = 0);
    assert_eq!(message, "attribute local_window_size is 0, expected at least -1 but not 0");
    assert_eq!(refused(|attributes| attributes.local_window_size = -2).replace("-2", "0"), message);
    let message = refused(|attributes| attributes.scale = f32::NEG_INFINITY);
    assert_eq!(message, "attribute scale is -inf, expected a finite number");
    for softcap in [-1.0, f32::NAN] {
        let mut attributes = attributes(0).attention;
        attributes.softcap = softcap;
        let message = MultiHeadAttention::new(attributes).unwrap_err().to_string();
        assert_eq!(message, format!("attribute softcap is {softcap}, expected a finite number of at least 0"));
    }
}

#[test]
fn a_step_is_checked_before_any_layer() {
    let op = MultiHeadCacheAttention::new(attributes(0)).unwrap();
    let check = |t1, cache: TensorMut<'_>, decoding: &i64, mask: Option<&Array2<f32>>| {
        let mask = mask.map(TensorRef::from);
        op.check_layers(t1, &indices(), &decoding.into(), mask.as_ref(), cache, None).map(|_| ()).unwrap_err()
    };
    let float32 = ElementType::Float32;
    let narrow = Array2::zeros((3, 5));
    let error = check(float32, (&mut cache()).into(), &0, Some(&narrow));
    assert!(matches!(error, Error::MaskTooSmall { got: 5, expected: 6, .. }), "{error}");
    let error = check(float32, (&mut cache()).into(), &-1, None);
    assert_eq!(error, Error::DecodingBatchesNegative { got: -1 });
    let error = check(ElementType::Int8, (&mut cache()).into(), &0, None);
    assert_eq!(error, Error::AttentionType { input: "current_key", got: ElementType::Int8 });
    let error = check(float32, (&mut Array5::<f32>::zeros((9, 3, 2, 4, 8))).into(), &0, None);
    assert!(matches!(error, Error::ShapeMismatch { input: "cache", axis: 3, got: 4, expected: 2, .. }), "{error}");
    let error = check(float32, (&mut Array5::<f32>::zeros((9, 3, 2, 2, 4))).into(), &0, None);
    assert!(matches!(error, Error::ShapeMismatch { input: "cache", axis: 4, got: 4, expected: 8, .. }), "{error}");
}

#[test]
fn packed_rows_are_checked_as_the_cache_is() {
    let attributes = attributes(0).attention;
    let op = MultiHeadAttention::new(attributes.clone()).unwrap().with_backend(AttentionBackend::Reference);
    assert_eq!(op.attributes(), &attributes);
    let (query, rows) = (numbers((3, 4, 8), 0), numbers((6, 2, 8), 1));
    let inputs = AttentionInputs {
        query: (&query).into(),
        key: (&rows).into(),
        value: (&rows).into(),
        seqstarts: (&[0, 1, 3]).into(),
        kvstarts: (&[0, 4, 6]).into(),
        decoding_batches: (&0).into(),
        max_seqlen: (&2).into(),
        max_kvlen: (&4).into(),
        attn_mask: None,
        head_sink: None,
    };
    let [output]: [Array3<f32>; 1] = op.check(&inputs).unwrap().run_alloc(&Serial).unwrap();
    assert_eq!(output.dim(), (3, 4, 8));
    let error = op.check(&inputs).unwrap().run_alloc::<f16, Ix3, 1>(&Serial).unwrap_err();
    assert!(matches!(error, Error::TypeMismatch { input: "attn_output", .. }), "{error}");
    let wide = Array3::<f32>::zeros((6, 2, 9));
    let part = wide.slice(s![.., .., ..8]);
    let error = op.check(&AttentionInputs { value: (&part).into(), ..inputs.clone() }).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NotContiguous { input: "value", .. }), "{error}");
    let (fewer, heads) = (numbers((5, 2, 8), 1), numbers((6, 3, 8), 1));
    let error = op.check(&AttentionInputs { value: (&fewer).into(), ..inputs.clone() }).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "value has 5 in axis 0 (shape [5, 2, 8]), expected 6, as in key");
    let error = op.check(&AttentionInputs { key: (&heads).into(), ..inputs.clone() }).map(|_| ()).unwrap_err();
    let expected = "key has 3 in axis 1 (shape [6, 3, 8]), expected 2, by num_kv_heads and head_dim";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn the_outputs_shape_is_inferred_from_query() {
    let op = MultiHeadCacheAttention::new(attributes(1)).unwrap();
    let known = [Dim::Known(4), Dim::Known(8)];
    let tokens = Dim::Symbol("tokens".to_owned());
    let query = [tokens.clone(), Dim::Unknown, Dim::Unknown];
    assert_eq!(op.infer_shape(Some(&query)), [tokens, known[0].clone(), known[1].clone()]);
    assert_eq!(op.infer_shape(Some(&known)), [Dim::Unknown, known[0].clone(), known[1].clone()]);
    let packed = MultiHeadAttention::new(attributes(1).attention).unwrap();
    assert_eq!(packed.infer_shape(None), [Dim::Unknown, known[0].clone(), known[1].clone()]);
}

#[test]
fn heads_of_any_number_and_size_are_legal_where_there_are_no_queries() {
    let element = ElementType::Float32;
    // SAFETY: no tensor has an element, so any address serves.
    let tensor = |heads: usize, head_dim: usize| unsafe {
        TensorRef::from_raw_parts(element, [0, heads, head_dim], std::ptr::dangling::<f32>().cast())
    };
    let sizes = [(1 << 44, 1), (1, 1 << 60)];
    let backends = AttentionBackend::all();
    for (backend, (heads, head_dim)) in backends.flat_map(|backend| sizes.map(|size| (backend, size))) {
        let attributes = AttentionAttributes {
            num_heads: heads as i64,
            num_kv_heads: 1,
            head_dim: head_dim as i64,
            is_alibi: 1,
            ..Default::default()
        };
        let inputs = AttentionInputs {
            query: tensor(heads, head_dim),
            key: tensor(1, head_dim),
            value: tensor(1, head_dim),
            seqstarts: (&[0, 0]).into(),
            kvstarts: (&[0, 0]).into(),
            decoding_batches: (&0).into(),
            max_seqlen: (&0).into(),
            max_kvlen: (&0).into(),
            attn_mask: None,
            head_sink: None,
        };
        let op = MultiHeadAttention::new(attributes).unwrap().with_backend(backend);
        let [output]: [Array3<f32>; 1] = op.check(&inputs).unwrap().run_alloc(&Serial).unwrap();
        assert_eq!(output.dim(), (0, heads, head_dim), "{}", backend.name());
    }
}

/// A float32 scale that is infinite in float16, of codes that are 0 but one: products of code and scale are NaN.
#[test]
fn a_key_with_an_infinite_scale_is_not_hidden() {
    let cache = Attributes { quant_bit: 8, quant_group: 8, ..Attributes::default() };
    let attention = AttentionAttributes { num_heads: 1, head_dim: 8, is_causal: 0, ..Default::default() };
    let indices = IndexInputs {
        seqstarts: (&[0, 2]).into(),
        kvstarts: (&[0, 2]).into(),
        cachestarts: (&[0]).into(),
        start_pos: (&[0]).into(),
        max_seqlen: (&2).into(),
        max_kvlen: (&2).into(),
    };
    let one = |x: f32| move |(t, _, d)| if (t, d) == (0, 0) { x } else { 0.25 * d as f32 };
    let query = Array3::from_shape_fn((2, 1, 8), |(_, _, d)| if d == 0 { -1.0 } else { 0.0 });
    let (key, value) = (Array3::from_shape_fn((2, 1, 8), one(1e8)), Array3::from_shape_fn((2, 1, 8), one(1.0)));
    let op = MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, cache }).unwrap();
    for backend in AttentionBackend::all() {
        let op = op.clone().with_backends(backend, Backend::default());
        let (mut codes, mut scale) = (Array5::<i8>::zeros((2, 1, 2, 1, 8)), Array5::<f16>::zeros((2, 1, 2, 1, 1)));
        let inputs = CacheAttentionInputs {
            query: (&query).into(),
            stored: Inputs { current_key: (&key).into(), current_value: (&value).into(), indices: indices.clone() },
            decoding_batches: (&0).into(),
            attn_mask: None,
            head_sink: None,
        };
        let call = op.check(&inputs, (&mut codes).into(), Some((&mut scale).into())).unwrap();
        let [output]: [Array3<f32>; 1] = call.run_alloc(&Serial).unwrap();
        assert!(scale[(0, 0, 0, 0, 0)].is_infinite() && output.iter().all(|x| x.is_nan()), "{backend:?}: {output}");
    }
}
