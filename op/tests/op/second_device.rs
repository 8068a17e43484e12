//! A second device: the host's memory, with the reference kernels as its own. All that it needs is in the trait.

use std::cell::RefCell;
use std::convert::Infallible;

use half::f16;
use kvcache_conformance::Tensor;
use kvcache_op::attention_kernels::{
    AttentionIndices, AttentionKernel, AttentionPointers, AttentionProblem, AttentionReference, Keys, Mask,
};
use kvcache_op::device::{
    Device, DeviceAttention, DeviceCacheAttentionInputs, DeviceInputs, DeviceKeys, DeviceMut, DeviceOutputs,
    DeviceProblem, DeviceRef, DeviceStores, Error, OutputRows, Pages,
};
use kvcache_op::kernels::{Addressing, Indices, Kernel, Outputs, Pointers, Problem, Reference, Stores};
use kvcache_op::{
    AttentionAttributes, AttentionBackend, Attributes, Backend, CacheAttentionAttributes, CacheAttentionInputs,
    ElementType, IndexInputs, Inputs, KeyValueCache, MultiHeadCacheAttention, Serial,
};
use kvcache_testing::random::{After, RandomCall, calls};
use ndarray::{Array3, Array5};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Host;

/// A stream runs what it is given at once, and remembers what that was.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream(RefCell<Vec<&'static str>>);

/// The scratch memory that each call of attention asks for.
const SCRATCH: usize = 64;

impl Device for Host {
    type Stream = Stream;
    type RawStream = *const Stream;
    type StatusWord = u64;
    type Usage<'a> = &'a Stream;
    type Queue<'a> = &'a Stream;
    type Error = Infallible;

    fn error_kind(error: &Infallible) -> &'static str {
        match *error {}
    }

    fn check_usage(usage: &&Stream, input: &'static str, stream: &Stream) -> Result<(), Error<Self>> {
        if std::ptr::eq(*usage, stream) { Ok(()) } else { Err(Error::OtherStream { input }) }
    }

    fn status_address(status: &u64, _: &Stream) -> Result<u64, Infallible> {
        Ok(std::ptr::from_ref(status).expose_provenance() as u64)
    }

    fn queue(stream: &Stream) -> Result<&Stream, Infallible> {
        Ok(stream)
    }

    unsafe fn raw_queue<'a>(stream: *const Stream) -> Result<&'a Stream, Infallible> {
        // SAFETY: `stream` lives for 'a: see `# Safety`.
        Ok(unsafe { &*stream })
    }

    fn prepare(queue: &&Stream, _: ElementType, _: ElementType, _: Option<ElementType>) -> Result<(), Infallible> {
        queue.0.borrow_mut().push("prepare");
        Ok(())
    }

    fn prepare_attention(
        queue: &&Stream,
        _: ElementType,
        _: ElementType,
        _: Option<ElementType>,
        _: usize,
    ) -> Result<(), Infallible> {
        queue.0.borrow_mut().push("prepare_attention");
        Ok(())
    }

    unsafe fn run(queue: &&Stream, problem: &DeviceProblem) -> Result<(), Infallible> {
        queue.0.borrow_mut().push("run");
        let starts = Starts::new(&problem.stores);
        let outputs = Outputs { num_repeat: problem.num_repeat, pointers: problem.outputs.map(at) };
        // SAFETY: the addresses are the host's, of tensors of a checked call: see `# Safety`.
        let mut problem = unsafe { Problem::assume_checked(starts.stores(&problem.stores), outputs) };
        Reference.run(&mut problem, &Serial);
        Ok(())
    }

    fn scratch_bytes(_: &DeviceAttention) -> Result<usize, Infallible> {
        Ok(SCRATCH)
    }

    fn with_scratch<R>(queue: &&Stream, bytes: usize, run: impl FnOnce(u64) -> R) -> Result<R, Infallible> {
        queue.0.borrow_mut().push("with_scratch");
        let mut scratch = vec![0u32; bytes / 4];
        Ok(run(scratch.as_mut_ptr().expose_provenance() as u64))
    }

    unsafe fn attend(queue: &&Stream, call: &DeviceAttention) -> Result<(), Infallible> {
        queue.0.borrow_mut().push("attend");
        assert_ne!(call.scratch, 0, "no scratch memory");
        let mask = |mask: kvcache_op::device::DeviceMask| Mask {
            data: at(mask.address),
            width: mask.width,
            per_head: mask.per_head,
        };
        let pointers = AttentionPointers { query: at(call.query), attn_mask: call.attn_mask.map(mask) };
        let starts;
        let keys = match &call.keys {
            DeviceKeys::Packed(packed) => {
                let rows = call.geometry.batch + 1;
                let indices = AttentionIndices {
                    seqstarts: int64s(packed.seqstarts, rows),
                    kvstarts: int64s(packed.kvstarts, rows),
                };
                Keys::Packed { pointers: packed.rows_at.map(|address| at(address).cast_const()), indices }
            }
            DeviceKeys::Cache(stores) => {
                starts = Starts::new(stores);
                Keys::Cache(starts.stores(stores))
            }
        };
        // SAFETY: the addresses are the host's, of tensors of a checked call: see `# Safety`.
        let mut problem = unsafe { AttentionProblem::assume_checked(call.geometry, keys, pointers) };
        // SAFETY: `attn_output` is valid for writes of its shape, whose bytes these are, and overlaps nothing.
        let output = unsafe { std::slice::from_raw_parts_mut(at(call.attn_output).cast(), problem.output_bytes()) };
        problem.store(&Reference, &Serial);
        AttentionReference.attend(&problem, output, &Serial);
        Ok(())
    }
}

/// The memory at an address of the device.
fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn int64s<'a>(address: u64, len: usize) -> &'a [i64] {
    match len {
        0 => &[],
        // SAFETY: the test's index inputs have these lengths, and outlive each call, which runs at its launch.
        len => unsafe { std::slice::from_raw_parts(at(address).cast(), len) },
    }
}

/// What the device makes of the lengths that lie there: `kvstarts` is not among them.
struct Starts(Vec<i64>);

impl Starts {
    fn new(stores: &DeviceStores) -> Self {
        let batch = stores.geometry.batch;
        let (seqstarts, start_pos) = (int64s(stores.seqstarts, batch + 1), int64s(stores.start_pos, batch));
        let kvlens = seqstarts.windows(2).zip(start_pos).map(|(pair, start_pos)| start_pos + pair[1] - pair[0]);
        let mut kvstarts = vec![0];
        kvlens.for_each(|kvlen| kvstarts.push(kvstarts[kvstarts.len() - 1] + kvlen));
        assert_eq!(kvstarts[batch], stores.all_rows as i64);
        Self(kvstarts)
    }

    fn stores(&self, stores: &DeviceStores) -> Stores<'_> {
        let batch = stores.geometry.batch;
        let addressing = match stores.pages {
            Pages::Offset => Addressing::Offset { cachestarts: int64s(stores.cachestarts, batch) },
            Pages::Paged { max_p, page_size } => {
                Addressing::Paged { cachestarts: int64s(stores.cachestarts, batch * max_p), max_p, page_size }
            }
            Pages::Strided { .. } => unreachable!("no test is of static batching"),
        };
        let indices = Indices {
            seqstarts: int64s(stores.seqstarts, batch + 1),
            kvstarts: &self.0,
            start_pos: int64s(stores.start_pos, batch),
            addressing,
        };
        let current = stores.current.map(|address| at(address).cast_const());
        let pointers = Pointers { current, cache: at(stores.cache), scale: at(stores.scale) };
        // SAFETY: a call that has been checked, on tensors of the host that outlive it.
        unsafe { Stores::assume_checked(stores.geometry, indices, pointers) }
    }
}

/// A slice of the host as a tensor of the device.
fn read<'a, T>(element: ElementType, shape: &[usize], data: &'a [T], stream: &'a Stream) -> DeviceRef<'a, Host> {
    let slice = (data.as_ptr().expose_provenance() as u64, size_of_val(data));
    // SAFETY: the slice is borrowed for 'a, and a stream runs a call at its launch.
    unsafe { DeviceRef::of_slice(element, shape, slice, stream) }
}

fn write<'a, T>(element: ElementType, shape: &[usize], data: &'a mut [T], stream: &'a Stream) -> DeviceMut<'a, Host> {
    let slice = (data.as_mut_ptr().expose_provenance() as u64, size_of_val(data));
    // SAFETY: the slice is borrowed mutably for 'a, and a stream runs a call at its launch.
    unsafe { DeviceMut::of_slice(element, shape, slice, stream) }
}

fn read_tensor<'a>(tensor: &'a Tensor, stream: &'a Stream) -> DeviceRef<'a, Host> {
    read(tensor.element(), tensor.shape(), tensor.bytes(), stream)
}

fn write_tensor<'a>(tensor: &'a mut Tensor, stream: &'a Stream) -> DeviceMut<'a, Host> {
    let (element, shape) = (tensor.element(), tensor.shape().to_vec());
    write(element, &shape, tensor.bytes_mut(), stream)
}

/// The call on the device, launched on `stream` with tensors that were made for another one or for it.
fn launch(call: &RandomCall, made_for: &Stream, stream: &Stream) -> Result<After, Error<Host>> {
    let op = KeyValueCache::new(call.attributes.clone())?;
    let (mut cache, mut scale) = (call.cache.clone(), call.scale.clone());
    let index = |values| read(ElementType::Int64, &[<[i64]>::len(values)], values, made_for);
    let inputs = DeviceInputs {
        current_key: read_tensor(&call.current[0], made_for),
        current_value: read_tensor(&call.current[1], made_for),
        indices: IndexInputs {
            seqstarts: index(&call.seqstarts),
            kvstarts: OutputRows::Kvstarts((&call.kvstarts).into()),
            cachestarts: read_tensor(&call.cachestarts, made_for),
            start_pos: index(&call.start_pos),
            max_seqlen: (&100_000).into(),
            max_kvlen: (&100_000).into(),
        },
    };
    let scale_tensor = scale.as_mut().map(|scale| write_tensor(scale, made_for));
    let checked = op.check_device(inputs, write_tensor(&mut cache, made_for), scale_tensor)?;
    let output = || Tensor::zeros(call.t1, checked.output_shape().to_vec()).unwrap();
    let (mut key, mut value) = (output(), output());
    let outputs = DeviceOutputs { key: write_tensor(&mut key, made_for), value: write_tensor(&mut value, made_for) };
    checked.launch(outputs, &0, stream)?;
    Ok(After { key, value, cache, scale })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn calls_on_a_second_device_are_those_of_the_host(call in calls(8, 8)) {
        let stream = Stream::default();
        let expected = call.run(Backend::Reference, |call, outputs| call.run(outputs, &Serial).unwrap());
        prop_assert!(launch(&call, &stream, &stream) == Ok(expected));
        prop_assert_eq!(stream.0.into_inner(), ["run"]);
        let (one, other) = (Stream::default(), Stream::default());
        prop_assert_eq!(launch(&call, &one, &other), Err(Error::OtherStream { input: "current_key" }));
        prop_assert_eq!([one, other], [Stream::default(), Stream::default()]);
    }
}

/// A prompt of two tokens and a decode step after three, on two key heads of a float16 cache.
#[test]
fn attention_on_a_second_device_is_that_of_the_host() {
    let attributes = CacheAttentionAttributes {
        attention: AttentionAttributes { num_heads: 4, head_dim: 8, num_kv_heads: 2, ..Default::default() },
        cache: Attributes { num_layer: 2, layer_idx: 1, ..Attributes::default() },
    };
    let op = MultiHeadCacheAttention::new(attributes).unwrap();
    let numbers = |heads| Array3::from_shape_fn((3, heads, 8), |(t, h, d)| ((t * 31 + h * 17 + d * 7) % 23) as f32);
    let (query, current) = (numbers(4), numbers(2));
    let cache = Array5::from_shape_fn((9, 2, 2, 2, 8), |(t, l, kv, h, d)| f16::from_f32((t + l + kv + h + d) as f32));
    let [seqstarts, kvstarts] = [[0i64, 2, 3], [0, 2, 6]];
    let [cachestarts, start_pos] = [[6i64, 1], [0, 3]];

    let inputs = CacheAttentionInputs {
        query: (&query).into(),
        stored: Inputs {
            current_key: (&current).into(),
            current_value: (&current).into(),
            indices: IndexInputs {
                seqstarts: (&seqstarts).into(),
                kvstarts: (&kvstarts).into(),
                cachestarts: (&cachestarts).into(),
                start_pos: (&start_pos).into(),
                max_seqlen: (&2).into(),
                max_kvlen: (&4).into(),
            },
        },
        decoding_batches: (&0).into(),
        attn_mask: None,
    };
    let mut expected_cache = cache.clone();
    let reference = op.clone().with_backends(AttentionBackend::Reference, Backend::Reference);
    let call = reference.check(&inputs, (&mut expected_cache).into(), None).unwrap();
    let expected: Array3<f32> = call.run_alloc(&Serial).unwrap();

    let stream = &Stream::default();
    op.prepare_device::<Host>(ElementType::Float32, ElementType::Float16, None, stream).unwrap();
    let rows = |rows: &'static Array3<f32>| read(ElementType::Float32, rows.shape(), rows.as_slice().unwrap(), stream);
    let (query, current) = (&*Box::leak(Box::new(query)), &*Box::leak(Box::new(current)));
    let index = |values| read(ElementType::Int64, &[<[i64]>::len(values)], values, stream);
    let inputs = DeviceCacheAttentionInputs {
        query: rows(query),
        stored: DeviceInputs {
            current_key: rows(current),
            current_value: rows(current),
            indices: IndexInputs {
                seqstarts: index(&seqstarts),
                kvstarts: OutputRows::Kvstarts((&kvstarts).into()),
                cachestarts: index(&cachestarts),
                start_pos: index(&start_pos),
                max_seqlen: (&2).into(),
                max_kvlen: (&4).into(),
            },
        },
        decoding_batches: (&0).into(),
        attn_mask: None,
    };
    let (mut device_cache, mut output) = (cache, Array3::<f32>::zeros((3, 4, 8)));
    let device_cache_tensor =
        write(ElementType::Float16, &[9, 2, 2, 2, 8], device_cache.as_slice_mut().unwrap(), stream);
    let call = op.check_device(inputs, device_cache_tensor, None).unwrap();
    let attn_output = write(ElementType::Float32, &[3, 4, 8], output.as_slice_mut().unwrap(), stream);
    // SAFETY: the stream lives, all slices were made for it, and this device writes no status word.
    unsafe { call.launch_raw_alloc(attn_output, 0, stream) }.unwrap();
    assert_eq!((output, device_cache), (expected, expected_cache));
    assert_eq!(*stream.0.borrow(), ["prepare_attention", "prepare", "with_scratch", "attend"]);
}
