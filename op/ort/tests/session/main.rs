//! The library as a Rust program uses it: registered by its path in a session of the `ort` crate, or linked.
//!
//! What the session gives is compared with what the operator gives when it is called directly.

#[path = "../../src/api_1_24.rs"]
mod api_1_24;
mod call;
mod model;
mod runtime;
mod shapes;

use half::f16;
use kvcache_op::{Attributes, KeyValueCache, Serial, TensorMut};
use kvcache_schema::DOMAINS;
use kvcache_schema::ElementType::{Float16, Float32, Int4};
use ndarray::{Array3, Array5};
use ort::memory::Allocator;
use ort::value::{DynTensor, TensorElementType, TensorRefMut};

use crate::call::{Call, HEAD_DIM, MAX_T, NUM_HEADS, STEPS, attributes};
use crate::model::{node, node_in};
use crate::runtime::{session, session_in_process};

const CACHE_SHAPE: [usize; 5] = [2, 2, NUM_HEADS, MAX_T, HEAD_DIM];

#[test]
fn decoding_gives_the_operators_bits_and_writes_the_callers_cache() -> ort::Result<()> {
    let operator = KeyValueCache::new(attributes()).unwrap();
    let model = |domain| node_in(domain, (Float32, Float32, None), &attributes()).model();
    for (domain, mut session) in [
        (DOMAINS[0], session(&model(DOMAINS[0]))?),
        (DOMAINS[1], session(&model(DOMAINS[1]))?),
        (DOMAINS[0], session_in_process(&model(DOMAINS[0]))?),
    ] {
        let mut cache = Array5::<f32>::from_elem(CACHE_SHAPE, 0.5);
        let mut expected_cache = cache.clone();
        for step in STEPS {
            let call = Call::new(step, |x| x);
            let (key, value): (Array3<f32>, _) =
                operator.run_alloc(&call.inputs(), (&mut expected_cache).into(), None, &Serial).unwrap();

            let mut values = call.values()?;
            let memory = (CACHE_SHAPE, cache.as_slice_mut().unwrap());
            values.push(("cache", TensorRefMut::from_array_view_mut(memory)?.into()));
            let outputs = session.run(values)?;
            for (name, expected) in [("key", key), ("value", value)] {
                let (shape, got) = outputs[name].try_extract_tensor::<f32>()?;
                assert_eq!(**shape, [expected.dim().0, expected.dim().1, expected.dim().2].map(|dim| dim as i64));
                assert_eq!(got, expected.as_slice().unwrap(), "{name} in {domain}");
            }
            drop(outputs);
            assert_eq!(cache, expected_cache, "{domain}");
        }
        assert_ne!(cache, Array5::from_elem(CACHE_SHAPE, 0.5));
    }
    Ok(())
}

#[test]
fn an_int4_cache_and_its_scale_are_written_in_place() -> ort::Result<()> {
    let attributes = Attributes { quant_bit: 4, quant_group: 8, ..attributes() };
    let operator = KeyValueCache::new(attributes.clone()).unwrap();
    let mut session = session(&node((Float16, Int4, Some(Float16)), &attributes).model())?;
    let packed = CACHE_SHAPE.iter().product::<usize>() / 2;
    let mut cache = DynTensor::new(&Allocator::default(), TensorElementType::Int4, CACHE_SHAPE)?;
    // SAFETY: the tensor has just been made with so many bytes.
    unsafe { cache.data_ptr_mut().cast::<u8>().write_bytes(0x5a, packed) };
    let mut expected_cache = vec![0x5a; packed];
    let [a, b, c, d, head_dim] = CACHE_SHAPE;
    let scale_shape = [a, b, c, d, head_dim / 8];
    let mut scale = Array5::<f16>::ones(scale_shape);
    let mut expected_scale = scale.clone();
    for step in STEPS {
        let call = Call::new(step, f16::from_f32);
        let in_out = TensorMut::int4(CACHE_SHAPE, &mut expected_cache);
        let (key, value): (Array3<f16>, _) =
            operator.run_alloc(&call.inputs(), in_out, Some((&mut expected_scale).into()), &Serial).unwrap();

        let mut values = call.values()?;
        values.push(("cache", cache.view_mut().into()));
        let memory = (scale_shape, scale.as_slice_mut().unwrap());
        values.push(("scale", TensorRefMut::from_array_view_mut(memory)?.into()));
        let outputs = session.run(values)?;
        for (name, expected) in [("key", key), ("value", value)] {
            assert_eq!(outputs[name].try_extract_tensor::<f16>()?.1, expected.as_slice().unwrap(), "{name}");
        }
        drop(outputs);
        // SAFETY: the tensor has so many bytes, all written above.
        assert_eq!(unsafe { std::slice::from_raw_parts(cache.data_ptr().cast::<u8>(), packed) }, expected_cache);
        assert_eq!(scale, expected_scale);
    }
    Ok(())
}

#[test]
fn a_refused_call_says_why_and_leaves_the_cache() -> ort::Result<()> {
    let mut session = session(&node((Float32, Float32, None), &attributes()).model())?;
    let mut cache = vec![0.5f32; CACHE_SHAPE.iter().product()];
    let call = Call::new(STEPS[0], |x: f32| x).broken();
    let mut values = call.values()?;
    values.push(("cache", TensorRefMut::from_array_view_mut((CACHE_SHAPE, cache.as_mut_slice()))?.into()));
    let message = session.run(values).map(|_| ()).unwrap_err().to_string();
    for expected in ["kvlen_mismatch", "kvstarts", "batch 1", "kvlen 4"] {
        assert!(message.contains(expected), "{expected} in {message}");
    }
    assert!(cache.iter().all(|&x| x == 0.5));
    Ok(())
}

#[test]
fn a_node_that_cannot_work_is_refused_at_load() {
    let quantized = Attributes { quant_bit: 8, ..attributes() };
    let cases = [
        (node((Float32, Float32, None), &quantized), "illegal_types"),
        (node((Float32, Float16, Some(Float32)), &quantized), "cache (T2) is float16, scale (T3) is float32"),
        (node((Float32, Float32, None), &attributes()).float_attribute("page_size", 4.0), "attribute page_size"),
        (node((Float32, Float32, None), &Attributes { page_size: 0, ..attributes() }), "page_size is 0"),
    ];
    for (refused, expected) in cases {
        let message = session(&refused.model()).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("the node"), "{expected} in {message}");
    }
}
