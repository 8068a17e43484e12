//! Static batching: what golden cases cannot describe.

use kvcache_op::{
    ElementType, Error, Outputs, Serial, StaticAttributes, StaticInputs, StaticKeyValueCache, TensorMut, TensorRef,
};
use ndarray::{Array4, Array6};

/// In a cache (MaxB 3, L 2, 2, MaxS 4, H 2, Dh 8).
#[test]
fn outputs_and_memory_that_are_refused() {
    let op = StaticKeyValueCache::new(StaticAttributes { num_layer: 2, ..StaticAttributes::default() }).unwrap();
    let (current, mut cache) = (Array4::<f32>::ones((2, 1, 2, 8)), Array6::<f32>::zeros((3, 2, 2, 4, 2, 8)));
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

#[test]
fn shapes_are_inferred_as_far_as_they_are_known() {
    use kvcache_op::{Dim, StaticInputDims};
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
