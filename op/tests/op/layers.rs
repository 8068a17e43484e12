//! Layers with indices checked once for all give what each layer gives when it is called alone.

use kvcache_conformance::backends::{cache_attributes, read, write};
use kvcache_conformance::{Expected, Tensor};
use kvcache_op::{Attributes, ElementType, Error, IndexInputs, KeyValueCache, Outputs, Serial, TensorRef};
use kvcache_testing::random::{case, drawn};
use ndarray::{Array3, Array5};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn layers_agree(seed: u64) {
        let mut one = drawn(seed, 6, 12).call(0);
        let op = KeyValueCache::new(cache_attributes(&one.attributes)).unwrap();
        let (mut cache, mut scale) = (one.cache().clone(), one.scale.clone());
        let (inputs, t1) = (one.inputs.clone(), one.t1());
        let input = |name: &str| read(&inputs[name]);
        let indices = IndexInputs {
            seqstarts: input("seqstarts"),
            kvstarts: input("kvstarts"),
            cachestarts: input("cachestarts"),
            start_pos: input("start_pos"),
            max_seqlen: input("max_seqlen"),
            max_kvlen: input("max_kvlen"),
        };
        let mut layers = op
            .check_layers(t1, &indices, write(&mut cache), scale.as_mut().map(write))
            .unwrap();
        for layer_idx in (0..one.attributes["num_layer"]).rev().chain([0]) {
            // The operator on each layer in turn, checked each time.
            one.attributes.insert("layer_idx", layer_idx);
            let alone = case(one.clone());
            let Expected::Success(after) = &alone.steps[0].expected else { panic!("a legal call") };
            (one.cache, one.scale) = (after.get("cache").cloned(), after.get("scale").cloned());

            let output = || Tensor::zeros(t1, layers.output_shape().to_vec()).unwrap();
            let (mut key, mut value) = (output(), output());
            let outputs = Outputs { key: write(&mut key), value: write(&mut value) };
            let call = layers.layer(layer_idx as usize, &input("current_key"), &input("current_value")).unwrap();
            call.run(outputs, &Serial).unwrap();
            prop_assert!((&key, &value) == (&after["key"], &after["value"]), "layer {}", layer_idx);
        }
        prop_assert!((&Some(cache), &scale) == (&one.cache, &one.scale));
    }
}

/// One sequence of 2 new tokens after 3, in a cache (MaxT 8, L 2, 2, H 2, Dh 4).
fn indices() -> IndexInputs<'static> {
    IndexInputs {
        seqstarts: (&[0, 2]).into(),
        kvstarts: (&[0, 5]).into(),
        cachestarts: (&[1]).into(),
        start_pos: (&[3]).into(),
        max_seqlen: (&2).into(),
        max_kvlen: (&5).into(),
    }
}

fn op() -> KeyValueCache {
    KeyValueCache::new(Attributes { num_layer: 2, ..Attributes::default() }).unwrap()
}

#[test]
fn errors_of_all_layers_are_found_by_check_layers() {
    let refused_of = |t1: ElementType, indices: IndexInputs<'_>, cache: [usize; 5]| {
        op().check_layers(t1, &indices, (&mut Array5::<f32>::zeros(cache)).into(), None).unwrap_err().kind()
    };
    let refused = |indices, cache| refused_of(ElementType::Float32, indices, cache);
    let shape = [8, 2, 2, 2, 4];
    assert_eq!(refused(indices(), [8, 3, 2, 2, 4]), "shape_mismatch");
    assert_eq!(refused(indices(), [5, 2, 2, 2, 4]), "cache_range");
    assert_eq!(refused_of(ElementType::Int8, indices(), shape), "illegal_types");
    assert_eq!(refused(IndexInputs { seqstarts: (&[0, -2]).into(), ..indices() }, shape), "starts_decrease");
    assert_eq!(refused(IndexInputs { start_pos: (&[2]).into(), ..indices() }, shape), "kvlen_mismatch");
    let quantized = KeyValueCache::new(Attributes { num_layer: 2, quant_bit: 8, ..Attributes::default() }).unwrap();
    let mut cache = Array5::<i8>::zeros([8, 2, 2, 2, 8]);
    let error = quantized.check_layers(ElementType::Float32, &indices(), (&mut cache).into(), None);
    assert_eq!(error.unwrap_err().kind(), "scale_missing");
}

#[test]
fn errors_of_one_layer_are_found_by_its_call() {
    let mut cache = Array5::<f32>::zeros([8, 2, 2, 2, 4]);
    let (op, indices) = (op(), indices());
    let mut layers = op.check_layers(ElementType::Float32, &indices, (&mut cache).into(), None).unwrap();
    let right = Array3::<f32>::ones([2, 2, 4]);
    for layer_idx in [2, usize::MAX] {
        let error = layers.layer(layer_idx, &(&right).into(), &(&right).into()).unwrap_err();
        assert!(matches!(error, Error::AttributeOutOfRange { name: "layer_idx", .. }), "{error}");
        assert!(error.to_string().ends_with("expected 0 to 1, because num_layer is 2"), "{error}");
    }
    for shape in [[3, 2, 4], [2, 1, 4], [2, 2, 8]] {
        let wrong = Array3::<f32>::ones(shape);
        let error = layers.layer(0, &(&right).into(), &(&wrong).into()).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { input: "current_value", .. }), "{error}");
    }
    let wrong = Array3::<i8>::ones([2, 2, 4]);
    let error = layers.layer(1, &(&wrong).into(), &(&right).into()).unwrap_err();
    assert!(matches!(error, Error::TypeMismatch { input: "current_key", .. }), "{error}");

    let (mut key, mut value) = (Array3::<f32>::zeros([5, 2, 4]), Array3::<f32>::zeros([4, 2, 4]));
    let outputs = Outputs { key: (&mut key).into(), value: (&mut value).into() };
    let error = layers.layer(1, &(&right).into(), &(&right).into()).unwrap().run(outputs, &Serial).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { input: "value", .. }), "{error}");
    assert!(cache.iter().all(|&x| x == 0.0));
}

#[test]
fn a_layer_does_not_read_the_cache_as_its_current_tokens() {
    let mut cache = Array5::<f32>::zeros([8, 2, 2, 2, 4]);
    let address = cache.as_ptr();
    let (op, indices) = (op(), indices());
    let mut layers = op.check_layers(ElementType::Float32, &indices, (&mut cache).into(), None).unwrap();
    // SAFETY: the memory is there; that it is also the cache's must be refused before it is read.
    let current = unsafe { TensorRef::from_raw_parts(ElementType::Float32, [2, 2, 4], address.cast()) };
    let error = layers.layer(0, &current, &current).unwrap_err();
    assert_eq!(error, Error::OperandsOverlap { input: "cache", other: "current_key" });
}
