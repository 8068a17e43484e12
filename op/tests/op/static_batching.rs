//! Static batching on random calls: every backend matches the reference bit for bit, each sequence is one of dynamic
//! batching, and layers that are checked once give what they give one by one.

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{read, write};
use kvcache_op::schema::StaticAxis;
use kvcache_op::{
    Attributes, Backend, CacheLayout, ElementType, Error, IndexInputs, Inputs, KeyValueCache, Outputs, Rayon, Serial,
    StaticAttributes, StaticCacheLayout, StaticInputs, StaticKeyValueCache, TensorMut, TensorRef, Workers,
};
use kvcache_testing::backends::{backends, splitting};
use kvcache_testing::static_calls::{After, RandomStaticCall, static_calls};
use proptest::prelude::*;

fn run(call: &RandomStaticCall, backend: Backend, workers: &dyn Workers) -> After {
    call.run(backend, |call, outputs| call.run(outputs, workers).unwrap())
}

fn layout(call: &RandomStaticCall) -> StaticCacheLayout {
    StaticCacheLayout::from_code(call.attributes.cache_layout).unwrap()
}

/// The axis of the sequences in the shape of a cache.
fn batch_axis(layout: StaticCacheLayout) -> usize {
    layout.axes().iter().position(|&axis| axis == StaticAxis::Batch).unwrap()
}

/// Sequence `b` of a tensor whose axis of the sequences is `axis`, as a tensor without that axis.
fn sequence(tensor: &Tensor, axis: usize, b: usize) -> Tensor {
    let (element, shape) = (tensor.element(), tensor.shape());
    let outer: usize = shape[..axis].iter().product();
    let inner = element.bytes(shape[axis + 1..].iter().product()).unwrap();
    let bytes: Vec<u8> =
        (0..outer).flat_map(|i| tensor.bytes()[(i * shape[axis] + b) * inner..][..inner].iter().copied()).collect();
    Tensor::new(element, [&shape[..axis], &shape[axis + 1..]].concat(), &bytes).unwrap()
}

/// What dynamic batching leaves behind of sequence `b` alone, in a cache of its own.
fn dynamic(call: &RandomStaticCall, b: usize) -> After {
    let axis = batch_axis(layout(call));
    let mut cache = sequence(&call.cache, axis, b);
    let mut scale = call.scale.as_ref().map(|scale| sequence(scale, axis, b));
    let layout = match layout(call) {
        StaticCacheLayout::BatchMajor => CacheLayout::KvMajor,
        StaticCacheLayout::LayerMajor => CacheLayout::HeadMajor,
    };
    let attributes = Attributes {
        num_layer: call.attributes.num_layer,
        layer_idx: call.attributes.layer_idx,
        quant_bit: call.attributes.quant_bit,
        quant_group: call.attributes.quant_group,
        num_repeat: call.attributes.num_repeat,
        cache_layout: layout.code(),
        ..Attributes::default()
    };
    let current = call.current.each_ref().map(|current| sequence(current, 0, b));
    let seqlen = current[0].shape()[0] as i64;
    let kvlen = call.start_pos + seqlen;
    let op = KeyValueCache::new(attributes).unwrap().with_backend(Backend::Reference);
    let (seqstarts, kvstarts, start_pos) = ([0, seqlen], [0, kvlen], [call.start_pos]);
    let inputs = Inputs {
        current_key: read(&current[0]),
        current_value: read(&current[1]),
        indices: IndexInputs {
            seqstarts: (&seqstarts).into(),
            kvstarts: (&kvstarts).into(),
            cachestarts: (&[0]).into(),
            start_pos: (&start_pos).into(),
            max_seqlen: (&seqlen).into(),
            max_kvlen: (&kvlen).into(),
        },
    };
    let checked = op.check(&inputs, write(&mut cache), scale.as_mut().map(write)).unwrap();
    let output = || Tensor::zeros(call.t1, checked.output_shape().to_vec()).unwrap();
    let (mut key, mut value) = (output(), output());
    checked.run(Outputs { key: write(&mut key), value: write(&mut value) }, &Serial).unwrap();
    After { key, value, cache, scale }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn small_calls_agree(call in static_calls(12, 10)) {
        let reference = run(&call, Backend::Reference, &Serial);
        for backend in backends() {
            prop_assert!(run(&call, backend, &Serial) == reference, "{backend:?}");
        }
        // Sequences of the call, and those that the cache has beside them.
        let axis = batch_axis(layout(&call));
        for b in 0..call.cache.shape()[axis] {
            let of = |tensor: &Tensor| sequence(tensor, axis, b);
            let (cache, scale) = (of(&reference.cache), reference.scale.as_ref().map(of));
            if b < call.current[0].shape()[0] {
                let (key, value) = (sequence(&reference.key, 0, b), sequence(&reference.value, 0, b));
                prop_assert!(After { key, value, cache, scale } == dynamic(&call, b), "sequence {b}");
            } else {
                prop_assert!((cache, scale) == (of(&call.cache), call.scale.as_ref().map(of)), "sequence {b}");
            }
        }
    }

    #[test]
    fn layers_agree(call in static_calls(6, 8)) {
        let op = StaticKeyValueCache::new(call.attributes.clone()).unwrap();
        let (mut cache, mut scale) = (call.cache.clone(), call.scale.clone());
        let shape = call.current[0].shape();
        let inputs = call.inputs();
        let scale_tensor = scale.as_mut().map(write);
        let cache_tensor = write(&mut cache);
        let mut layers =
            op.check_layers(call.t1, [shape[0], shape[1]], &inputs.start_pos, cache_tensor, scale_tensor).unwrap();
        let mut alone = call.clone();
        for layer_idx in (0..call.attributes.num_layer).rev().chain([0]) {
            alone.attributes.layer_idx = layer_idx;
            let expected = run(&alone, Backend::default(), &Serial);
            let output = || Tensor::zeros(call.t1, layers.output_shape().to_vec()).unwrap();
            let (mut key, mut value) = (output(), output());
            let outputs = Outputs { key: write(&mut key), value: write(&mut value) };
            let layer = layers.layer(layer_idx as usize, &inputs.current_key, &inputs.current_value).unwrap();
            layer.run(outputs, &Serial).unwrap();
            prop_assert!((&key, &value) == (&expected.key, &expected.value), "layer {}", layer_idx);
            (alone.cache, alone.scale) = (expected.cache, expected.scale);
        }
        prop_assert!((cache, scale) == (alone.cache, alone.scale));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// The work is split, whatever it is.
    #[test]
    fn large_calls_agree_on_several_threads(call in static_calls(40, 120)) {
        let reference = run(&call, Backend::Reference, &Serial);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for backend in splitting() {
            let result = pool.install(|| run(&call, backend, &Rayon));
            prop_assert!(result == reference, "{backend:?}");
        }
    }
}

/// What golden cases cannot describe: a layer that is not there, tokens of another shape than those checked, memory.
mod refusals {
    use kvcache_op::{StaticAttributes, StaticInputs, TensorMut};
    use ndarray::{Array4, Array6};

    use super::*;

    fn op() -> StaticKeyValueCache {
        StaticKeyValueCache::new(StaticAttributes { num_layer: 2, ..StaticAttributes::default() }).unwrap()
    }

    /// A cache (MaxB 3, L 2, 2, MaxS 4, H 2, Dh 8).
    fn cache() -> Array6<f32> {
        Array6::zeros((3, 2, 2, 4, 2, 8))
    }

    #[test]
    fn of_layers() {
        let (mut cache, op) = (cache(), op());
        let mut layers =
            op.check_layers(ElementType::Float32, [2, 1], &(&3).into(), (&mut cache).into(), None).unwrap();
        assert_eq!(layers.output_shape(), [2, 4, 2, 8]);
        let (current, other) = (Array4::<f32>::ones((2, 1, 2, 8)), Array4::<f32>::ones((2, 2, 2, 8)));
        let error = layers.layer(2, &(&current).into(), &(&current).into()).unwrap_err();
        assert!(matches!(error, Error::AttributeOutOfRange { name: "layer_idx", got: 2, .. }), "{error}");
        let error = layers.layer(1, &(&current).into(), &(&other).into()).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { input: "current_value", axis: 1, got: 2, .. }), "{error}");
        assert!(layers.layer(1, &(&current).into(), &(&current).into()).is_ok());
        let error = op.check_layers(ElementType::Float32, [4, 1], &(&3).into(), (&mut cache).into(), None).unwrap_err();
        assert_eq!(error, Error::BatchTooLarge { batch: 4, max_b: 3 });
    }

    #[test]
    fn of_outputs_and_memory() {
        let (mut cache, op) = (cache(), op());
        let current = Array4::<f32>::ones((2, 1, 2, 8));
        let inputs =
            StaticInputs { current_key: (&current).into(), current_value: (&current).into(), start_pos: (&3).into() };
        let (mut key, mut short) = (Array4::<f32>::zeros((2, 4, 2, 8)), Array4::<f32>::zeros((2, 3, 2, 8)));
        let outputs = Outputs { key: (&mut key).into(), value: (&mut short).into() };
        let error = op.run(&inputs, (&mut cache).into(), None, outputs, &Serial).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { input: "value", axis: 1, got: 3, expected: 4, .. }), "{error}");
        let error = op.run_alloc::<half::f16>(&inputs, (&mut cache).into(), None, &Serial).unwrap_err();
        assert!(matches!(error, Error::TypeMismatch { input: "key", .. }), "{error}");
        let memory = cache.as_mut_ptr();
        // SAFETY: the memory is that of `cache`, alive and unused but for this call, which is refused before it writes.
        let key = unsafe { TensorMut::from_raw_parts(ElementType::Float32, [2, 4, 2, 8], memory.cast()) };
        let outputs = Outputs { key, value: (&mut short).into() };
        let error = op.run(&inputs, (&mut cache).into(), None, outputs, &Serial).unwrap_err();
        assert_eq!(error, Error::OperandsOverlap { input: "key", other: "cache" });
        assert!(cache.iter().all(|&x| x == 0.0), "no call was legal");
    }
}

#[test]
fn shapes_are_inferred_as_far_as_they_are_known() {
    use kvcache_op::{Dim, StaticAttributes, StaticInputDims};
    let name = |name: &str| Dim::Symbol(name.to_owned());
    let current = [name("batch"), Dim::Known(1), name("heads"), Dim::Unknown];
    let cache: Vec<_> = [3, 1, 2, 4, 2, 8].map(Dim::Known).into();
    let attributes = StaticAttributes { num_repeat: 3, ..StaticAttributes::default() };
    let op = StaticKeyValueCache::new(attributes.clone()).unwrap();
    let inputs = StaticInputDims { current_key: Some(&current), cache: Some(&cache), ..StaticInputDims::default() };
    assert_eq!(op.infer_shape(&inputs), [name("batch"), Dim::Unknown, Dim::Known(6), Dim::Known(8)]);
    let inputs = StaticInputDims { start_pos: Some(5), cache: None, ..inputs };
    assert_eq!(op.infer_shape(&inputs), [name("batch"), Dim::Known(6), Dim::Unknown, Dim::Unknown]);
    assert_eq!(op.infer_shape(&StaticInputDims::default()), [const { Dim::Unknown }; 4]);
    let layer_major = StaticKeyValueCache::new(StaticAttributes { cache_layout: 1, ..attributes }).unwrap();
    let cache: Vec<_> = [1, 3, 2, 7, 4, 8].map(Dim::Known).into();
    let inputs = StaticInputDims { cache: Some(&cache), start_pos: Some(0), ..StaticInputDims::default() };
    assert_eq!(layer_major.infer_shape(&inputs), [Dim::Unknown, Dim::Unknown, Dim::Known(21), Dim::Known(8)]);
}

#[test]
fn a_batch_of_any_size_whose_tensors_have_no_elements_is_legal() {
    const BATCH: usize = 1 << 44;
    let element = ElementType::Float32;
    // SAFETY: no tensor has an element, so any address serves.
    let (current, cache, key, value) = unsafe {
        let data = std::ptr::dangling_mut::<f32>().cast::<u8>();
        (
            TensorRef::from_raw_parts(element, [BATCH, 0, 2, 8], data),
            TensorMut::from_raw_parts(element, &[BATCH, 1, 2, 0, 2, 8][..], data),
            TensorMut::from_raw_parts(element, [BATCH, 0, 2, 8], data),
            TensorMut::from_raw_parts(element, [BATCH, 0, 2, 8], data),
        )
    };
    let inputs = StaticInputs { current_key: current.clone(), current_value: current, start_pos: (&0).into() };
    let op = StaticKeyValueCache::new(StaticAttributes::default()).unwrap();
    let call = op.check(&inputs, cache, None).unwrap();
    assert_eq!(call.output_shape(), [BATCH, 0, 2, 8]);
    call.run(Outputs { key, value }, &Serial).unwrap();
}
