//! Static batching: what golden cases cannot describe.

use kvcache_op::{
    Dim, ElementType, Outputs, Serial, StaticAttributes, StaticInputDims, StaticInputs, StaticKeyValueCache, TensorMut,
    TensorRef,
};

#[test]
fn shapes_are_inferred_as_far_as_they_are_known() {
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
