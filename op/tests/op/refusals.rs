//! Errors that golden cases cannot describe: of memory with gaps or of packed elements, and of sizes that no memory
//! has. Those of every operand are in `memory`.

use half::f16;
use kvcache_op::{
    Attributes, Dim, ElementType, Error, IndexInputs, InputDims, Inputs, KeyValueCache, Operand, Operands, Operator,
    Outputs, Serial, TensorMut, TensorRef,
};
use ndarray::{Array3, Array5, Ix2, Ix3, s};

/// One sequence of 2 new tokens after 3, in a cache (MaxT 8, L 1, 2, H 2, Dh 4).
struct Call {
    current: Array3<f32>,
    cache: Array5<f32>,
}

impl Call {
    fn new() -> Self {
        Self { current: Array3::ones((2, 2, 4)), cache: Array5::zeros((8, 1, 2, 2, 4)) }
    }
}

fn inputs(current: &Array3<f32>) -> Inputs<'_> {
    Inputs {
        current_key: current.into(),
        current_value: current.into(),
        indices: IndexInputs {
            seqstarts: (&[0, 2]).into(),
            kvstarts: (&[0, 5]).into(),
            cachestarts: (&[1]).into(),
            start_pos: (&[3]).into(),
            max_seqlen: (&2).into(),
            max_kvlen: (&5).into(),
        },
    }
}

fn op() -> KeyValueCache {
    KeyValueCache::new(Attributes::default()).unwrap()
}

/// The error of a call that must be refused with an untouched cache.
fn refused(call: &mut Call, run: impl FnOnce(&KeyValueCache, &mut Call) -> Result<(), Error>) -> Error {
    let error = run(&op(), call).expect_err("the call breaks a rule");
    assert!(call.cache.iter().all(|&x| x == 0.0), "the cache was written by a refused call: {error}");
    error
}

#[test]
fn tensors_with_gaps() {
    let wide = Array3::<f32>::ones((2, 2, 8));
    let view = wide.slice(s![.., .., ..4]);
    let error = refused(&mut Call::new(), |op, call| {
        let inputs = Inputs { current_value: (&view).into(), ..inputs(&call.current) };
        op.check(&inputs, (&mut call.cache).into(), None).map(drop)
    });
    assert!(matches!(error, Error::NotContiguous { input: "current_value", .. }), "{error}");

    let (mut wide, mut key) = (Array3::<f32>::zeros((5, 2, 8)), Array3::<f32>::zeros((5, 2, 4)));
    let error = refused(&mut Call::new(), |op, call| {
        let mut view = wide.slice_mut(s![.., .., ..4]);
        let outputs = Outputs { key: (&mut key).into(), value: (&mut view).into() };
        op.run(&inputs(&call.current), (&mut call.cache).into(), None, outputs, &Serial)
    });
    assert!(matches!(error, Error::NotContiguous { input: "value", .. }), "{error}");
}

#[test]
fn new_outputs_of_another_type() {
    let error = refused(&mut Call::new(), |op, call| {
        op.run_alloc::<f16>(&inputs(&call.current), (&mut call.cache).into(), None, &Serial).map(drop)
    });
    assert!(matches!(error, Error::TypeMismatch { input: "key", .. }), "{error}");
}

/// Tensors overlap from the first element that they share on, on either side, and not where one ends as the other
/// begins.
#[test]
fn tensors_that_share_one_element() {
    const LEN: usize = 5 * 2 * 4;
    let mut memory = vec![0.0f32; 3 * LEN];
    let data = memory.as_mut_ptr();
    for at in 0..=2 * LEN {
        let mut call = Call::new();
        // SAFETY: each has LEN elements of the memory, which is used here alone; of calls with both, those are refused
        // before they write where they share any.
        let outputs = unsafe {
            Outputs {
                key: TensorMut::from_raw_parts(ElementType::Float32, [5, 2, 4], data.add(LEN).cast()),
                value: TensorMut::from_raw_parts(ElementType::Float32, [5, 2, 4], data.add(at).cast()),
            }
        };
        let got = op().run(&inputs(&call.current), (&mut call.cache).into(), None, outputs, &Serial);
        let expected = match [0, 2 * LEN].contains(&at) {
            true => Ok(()),
            false => Err(Error::OperandsOverlap { input: "value", other: "key" }),
        };
        assert_eq!(got, expected, "value begins at element {at}, key has those from {LEN} to {}", 2 * LEN - 1);
        assert_eq!(call.cache.sum() == 0.0, got.is_err(), "value begins at element {at}");
    }
}

#[test]
fn packed_caches_of_the_wrong_length() {
    let attributes = Attributes { quant_bit: 4, quant_group: 4, ..Attributes::default() };
    let op = KeyValueCache::new(attributes).unwrap();
    let current = Array3::ones((2, 2, 4));
    let mut scale = Array5::<f16>::zeros((8, 1, 2, 2, 1));
    let mut bytes = [0; 65];
    let inputs = inputs(&current);
    for len in [63, 65] {
        let cache = TensorMut::int4([8, 1, 2, 2, 4], &mut bytes[..len]);
        let error = op.check(&inputs, cache, Some((&mut scale).into())).unwrap_err();
        assert!(matches!(error, Error::PackedLength { got, expected: 64, .. } if got == len), "{error}");
    }
    let cache = TensorMut::int4([8, 1, 2, 2, 4], &mut bytes[..64]);
    assert!(op.check(&inputs, cache, Some((&mut scale).into())).is_ok());
}

#[test]
fn float8_has_a_byte_for_each_element() {
    let quantized = |quant_type| Attributes { quant_bit: 8, quant_group: 4, quant_type, ..Attributes::default() };
    let [int8, float8] = [0, 1].map(|quant_type| KeyValueCache::new(quantized(quant_type)).unwrap());
    let current = Array3::from_elem((2, 2, 4), 1.75);
    let (mut bytes, mut scale) = ([0; 128], Array5::<f16>::zeros((8, 1, 2, 2, 1)));
    let inputs = inputs(&current);
    let cache = TensorMut::float8e4m3fn([8, 1, 2, 2, 4], &mut bytes);
    let error = int8.check(&inputs, cache, Some((&mut scale).into())).unwrap_err();
    assert!(matches!(error, Error::IllegalTypes { quant_type: 0, .. }), "{error}");
    let cache = TensorMut::float8e4m3fn([8, 1, 2, 2, 4], &mut bytes[..127]);
    let error = float8.check(&inputs, cache, Some((&mut scale).into())).unwrap_err();
    assert!(matches!(error, Error::PackedLength { got: 127, expected: 128, .. }), "{error}");
    let cache = TensorMut::float8e4m3fn([8, 1, 2, 2, 4], &mut bytes);
    let (key, _) = float8.run_alloc::<f32>(&inputs, cache, Some((&mut scale).into()), &Serial).unwrap();
    assert_eq!(key.slice(s![3.., .., ..]), current);
    // 448 times 2^-8.
    assert_eq!(bytes[64..96], [0x7e; 32]);
}

#[test]
fn sizes_beyond_64_bits() {
    let current = Array3::<f32>::ones((2, 2, 4));
    let mut call = Call::new();
    let op = KeyValueCache::new(Attributes { num_repeat: i64::MAX, ..Attributes::default() }).unwrap();
    let error = op.check(&inputs(&current), (&mut call.cache).into(), None).unwrap_err();
    assert!(matches!(error, Error::SizeOverflow { input: "key", .. }), "{error}");

    let op = KeyValueCache::new(Attributes { num_layer: 1 << 62, ..Attributes::default() }).unwrap();
    // SAFETY: no such memory exists; a shape whose size overflows is refused before any access.
    let cache = unsafe { TensorMut::from_raw_parts(ElementType::Float32, [8, 1 << 62, 2, 2, 4], 64 as *mut u8) };
    let error = op.check(&inputs(&current), cache, None).unwrap_err();
    assert!(matches!(error, Error::SizeOverflow { input: "cache", .. }), "{error}");
}

#[test]
fn outputs_that_memory_cannot_hold() {
    for num_repeat in [1 << 45, 1 << 52] {
        let error = refused(&mut Call::new(), |_, call| {
            let op = KeyValueCache::new(Attributes { num_repeat, ..Attributes::default() })?;
            op.run_alloc::<f32>(&inputs(&call.current), (&mut call.cache).into(), None, &Serial).map(drop)
        });
        assert!(matches!(&error, Error::OutOfMemory { output: "key", .. }), "{error}");
    }
    // Without tokens an output is empty, but its other axes can still be more than any array has.
    let current = Array3::<f32>::zeros((0, 2, 4));
    let none = Vec::new();
    let indices = IndexInputs {
        seqstarts: (&[0]).into(),
        kvstarts: (&[0]).into(),
        cachestarts: (&none).into(),
        start_pos: (&none).into(),
        max_seqlen: (&0).into(),
        max_kvlen: (&0).into(),
    };
    let inputs = Inputs { indices, ..inputs(&current) };
    for (num_repeat, fits) in [(1 << 40, true), (1 << 61, false)] {
        let op = KeyValueCache::new(Attributes { num_repeat, ..Attributes::default() }).unwrap();
        let result = op.run_alloc::<f32>(&inputs, (&mut Call::new().cache).into(), None, &Serial);
        assert_eq!(result.is_ok(), fits, "{result:?}");
    }
}

#[test]
fn shapes_are_inferred_as_far_as_they_are_known() {
    let op = KeyValueCache::new(Attributes { num_repeat: 3, ..Attributes::default() }).unwrap();
    let name = |name: &str| Dim::Symbol(name.to_owned());
    let current = [name("tokens"), name("heads"), Dim::Unknown];
    let cache = [name("max_t"), Dim::Known(1), Dim::Known(2), Dim::Known(2), name("head_dim")];
    let inputs = InputDims { current_key: Some(&current), cache: Some(&cache), ..InputDims::default() };
    assert_eq!(op.infer_shape(&inputs), [Dim::Unknown, Dim::Known(6), name("head_dim")]);
    let inputs = InputDims { current_value: Some(&current), total_kvlen: Some(7), ..InputDims::default() };
    assert_eq!(op.infer_shape(&inputs), [Dim::Known(7), Dim::Unknown, Dim::Unknown]);
    assert_eq!(op.infer_shape(&InputDims::default()), [Dim::Unknown, Dim::Unknown, Dim::Unknown]);

    let same_heads = KeyValueCache::new(Attributes::default()).unwrap();
    let inputs = InputDims { current_key: Some(&current), ..InputDims::default() };
    assert_eq!(same_heads.infer_shape(&inputs), [Dim::Unknown, name("heads"), Dim::Unknown]);
}

/// The operands of a call by position.
fn by_position<'a>(current: &'a Array3<f32>, cache: &'a mut Array5<f32>) -> Vec<Option<Operand<'a>>> {
    let Inputs { current_key, current_value, indices } = inputs(current);
    let IndexInputs { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen } = indices;
    let read = [current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen];
    read.into_iter().map(|input| Some(input.into())).chain([Some(TensorMut::from(cache).into())]).collect()
}

/// What the typed inputs cannot get wrong, operands by position can.
#[test]
fn operands_by_position() {
    let op = Operator::KeyValueCache(op());
    let refused = |change: &dyn Fn(&mut Vec<Option<Operand<'_>>>)| {
        let mut call = Call::new();
        let mut operands = by_position(&call.current, &mut call.cache);
        change(&mut operands);
        op.check(operands.into_iter().collect()).map(drop).unwrap_err()
    };
    assert_eq!(refused(&|operands| operands[2] = None), Error::InputMissing { input: "seqstarts" });
    assert_eq!(refused(&|operands| operands.truncate(8)), Error::InputMissing { input: "cache" });
    let error = refused(&|operands| operands.extend([None, None]));
    assert_eq!(error.to_string(), "the call has 11 inputs, expected at most 10");
    assert_eq!(error.kind(), "operand_count");
    let error = refused(&|operands| {
        // SAFETY: the call is refused before it accesses anything.
        let cache = unsafe { TensorRef::from_raw_parts(ElementType::Float32, [8, 1, 2, 2, 4], 64 as *const u8) };
        operands[8] = Some(cache.into());
    });
    assert_eq!(error, Error::ReadOnly { input: "cache" });
    #[cfg(feature = "cuda")]
    {
        use kvcache_op::cuda::DeviceRef;
        use kvcache_op::schema::OperatorKind;
        // SAFETY: the call is refused before it accesses anything.
        let on_device = |shape: &[usize]| unsafe { DeviceRef::from_raw_parts(ElementType::Float32, shape, 64).into() };
        let error = refused(&|operands| operands[1] = Some(on_device(&[2, 2, 4])));
        assert_eq!(error.to_string(), "current_value is in memory of a device, expected memory of the host");
        let error = refused(&|operands| operands[0] = Some(on_device(&[2, 2, 4])));
        assert_eq!(error, Error::Place { input: "current_value", got: "the host", expected: "a device" });
        // The operators of quantized matrices have no calls on devices.
        for (kind, input) in [(OperatorKind::QuantizedMatMul, "x"), (OperatorKind::QuantizedGather, "indices")] {
            let quantized = Operator::new(kind, |attributes| {
                for (name, value) in [("N", 16), ("K", 32), ("bits", 4), ("block_size", 32), ("activation_bits", 8)] {
                    // A gather has no activations.
                    assert!(attributes.set(name, value) || name == "activation_bits");
                }
                Ok::<_, Error>(())
            });
            let operands = (0..3).map(|_| Some(on_device(&[1, 32]))).collect();
            let error = quantized.and_then(|quantized| quantized.check(operands).map(drop)).unwrap_err();
            assert_eq!(error, Error::Place { input, got: "a device", expected: "the host" });
        }
    }
}

/// A call takes its outputs, no fewer and no more, of their rank; what is refused has not stored.
#[test]
fn outputs_by_position() {
    let mut call = Call::new();
    let mut outputs = [(); 3].map(|()| Array3::<f32>::zeros((5, 2, 4)));
    for count in [0, 1, 3] {
        let error = refused(&mut call, |op, call| {
            let checked = op.check(&inputs(&call.current), (&mut call.cache).into(), None)?;
            checked.run(outputs[..count].iter_mut().map(TensorMut::from), &Serial)
        });
        assert_eq!(error.to_string(), format!("the call has {count} outputs, expected key, value"));
    }
    let error = refused(&mut call, |op, call| {
        let checked = op.check(&inputs(&call.current), (&mut call.cache).into(), None)?;
        checked.run_alloc::<f32, Ix2, 2>(&Serial).map(drop)
    });
    assert!(matches!(error, Error::RankMismatch { input: "key", expected: 2, .. }), "{error}");
    let error = refused(&mut call, |op, call| {
        let checked = op.check(&inputs(&call.current), (&mut call.cache).into(), None)?;
        checked.run_alloc::<f32, Ix3, 3>(&Serial).map(drop)
    });
    assert!(matches!(error, Error::OperandCount { got: 3, .. }), "{error}");
}

/// A call whose caller has checked types and made the outputs, as a graph executor does: the memory of outputs is
/// checked all the same, and what is refused has not stored.
#[test]
fn outputs_by_address() {
    let op = Operator::KeyValueCache(op());
    let mut call = Call::new();
    let mut outputs = [(); 2].map(|()| Array3::<f32>::zeros((5, 2, 4)));
    let [key, value] = outputs.each_mut().map(|output| output.as_mut_ptr().cast::<u8>());
    let mut run = |addresses: [*mut u8; 2]| {
        let mut operands: Operands<'_> = by_position(&call.current, &mut call.cache).into_iter().collect();
        op.check_types(&[Some(ElementType::Float32); 9]).unwrap();
        // SAFETY: float32 and int64, as `by_position` has them.
        unsafe { operands.assume_types_checked() };
        // SAFETY: two arrays of the outputs' shape, used here alone; or else the call is refused.
        let result = op.check(operands).and_then(|checked| unsafe { checked.run_at(&addresses, &Serial) });
        assert_eq!(call.cache.sum() == 0.0, result.is_err());
        result
    };
    assert_eq!(run([key, key]), Err(Error::OperandsOverlap { input: "value", other: "key" }));
    assert_eq!(run([key, value.wrapping_add(1)]).unwrap_err().kind(), "misaligned");
    assert_eq!(run([key, value]), Ok(()));
    for output in &outputs {
        assert_eq!(output.slice(s![3.., .., ..]), call.current);
    }
}
