//! A second device: the host's memory, with the reference kernels as its own. All that it needs is in the trait.

use std::cell::RefCell;
use std::convert::Infallible;

use kvcache_conformance::{Tensor, backends};
use kvcache_op::attention_kernels::{AttentionKernel, AttentionPointers, AttentionProblem, AttentionReference, Keys};
use kvcache_op::device::{
    Device, DeviceAttention, DeviceInputs, DeviceKeys, DeviceMut, DeviceOutputs, DeviceProblem, DeviceRef,
    DeviceStores, Error, OutputRows, Pages, Types,
};
use kvcache_op::kernels::{Addressing, Indices, Kernel, Outputs, Pointers, Problem, Reference, Stores};
use kvcache_op::{
    AttentionAttributes, AttentionBackend, Backend, CacheAttentionAttributes, CacheAttentionInputs, ElementType,
    IndexInputs, KeyValueCache, MultiHeadCacheAttention, Serial,
};
use kvcache_testing::random::{After, RandomCall, calls};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Host;

/// A stream runs what it is given at once, and remembers what that was.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream(RefCell<Vec<&'static str>>);

/// The scratch memory that each call of attention asks for.
const SCRATCH: usize = 64;

// SAFETY: a use is a reference to its stream, which is compared; no call writes a status word; a call is done with its
// scratch memory when it has been put into a queue.
unsafe impl Device for Host {
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

    fn prepare(queue: &&Stream, _: Types) -> Result<(), Infallible> {
        queue.0.borrow_mut().push("prepare");
        Ok(())
    }

    fn prepare_attention(queue: &&Stream, _: Types, _: usize) -> Result<(), Infallible> {
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
        let DeviceKeys::Cache(stores) = &call.keys else { unreachable!("no test is of packed keys") };
        let starts = Starts::new(stores);
        let (keys, pointers) =
            (Keys::Cache(starts.stores(stores)), AttentionPointers { query: at(call.query), attn_mask: None });
        // SAFETY: the addresses are the host's, of tensors of a checked call: see `# Safety`.
        let mut problem = unsafe { AttentionProblem::assume_checked(call.geometry, keys, pointers) };
        // SAFETY: `attn_output` is valid for writes of its shape, whose bytes these are, and overlaps nothing.
        let output = unsafe { std::slice::from_raw_parts_mut(at(call.attn_output).cast(), problem.output_bytes()) };
        problem.store(&Reference, &Serial);
        AttentionReference.attend(&problem, output, None, &Serial);
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

/// A tensor of the host as one of the device, in a slice that is used by a stream.
fn read<'a>(tensor: &'a Tensor, stream: &'a Stream) -> DeviceRef<'a, Host> {
    let slice = (tensor.bytes().as_ptr().expose_provenance() as u64, tensor.bytes().len());
    // SAFETY: the slice is borrowed for 'a, and a stream runs a call at its launch.
    unsafe { DeviceRef::of_slice(tensor.element(), tensor.shape(), slice, stream) }
}

fn write<'a>(tensor: &'a mut Tensor, stream: &'a Stream) -> DeviceMut<'a, Host> {
    let slice = (tensor.bytes_mut().as_mut_ptr().expose_provenance() as u64, tensor.bytes().len());
    // SAFETY: the slice is borrowed mutably for 'a, and a stream runs a call at its launch.
    unsafe { DeviceMut::of_slice(tensor.element(), tensor.shape(), slice, stream) }
}

/// The inputs of a call as slices that are used by `stream`.
fn inputs<'a>(call: &'a RandomCall, stream: &'a Stream) -> DeviceInputs<'a, Host> {
    let inputs = &call.inputs;
    DeviceInputs {
        current_key: read(&inputs.current_key, stream),
        current_value: read(&inputs.current_value, stream),
        indices: IndexInputs {
            seqstarts: read(&inputs.seqstarts, stream),
            kvstarts: OutputRows::Kvstarts(backends::read(&inputs.kvstarts)),
            cachestarts: read(&inputs.cachestarts, stream),
            start_pos: read(&inputs.start_pos, stream),
            max_seqlen: (&100_000).into(),
            max_kvlen: (&100_000).into(),
        },
    }
}

/// The call on the device, launched on `stream` with slices that are used by another one or by it.
fn launch(call: &RandomCall, used_by: &Stream, stream: &Stream) -> Result<After, Error<Host>> {
    let op = KeyValueCache::new(call.attributes.clone())?;
    let (mut cache, mut scale) = (call.cache.clone(), call.scale.clone());
    let scale_tensor = scale.as_mut().map(|scale| write(scale, used_by));
    let checked = op.check_device(inputs(call, used_by), write(&mut cache, used_by), scale_tensor)?;
    let output = || Tensor::zeros(call.types.t1, checked.output_shape().to_vec()).unwrap();
    let (mut key, mut value) = (output(), output());
    checked.launch(DeviceOutputs { key: write(&mut key, used_by), value: write(&mut value, used_by) }, &0, stream)?;
    Ok(After { key, value, cache, scale })
}

/// Attention of the current keys over the cache: on the host, and on the device.
fn attend(call: &RandomCall, stream: &Stream) -> [(Tensor, Tensor, Option<Tensor>); 2] {
    let [_, heads, head_dim] = call.inputs.current_key.shape().try_into().unwrap();
    let attention =
        AttentionAttributes { num_heads: heads as i64, head_dim: head_dim as i64, ..AttentionAttributes::default() };
    let attributes = CacheAttentionAttributes { attention, cache: call.attributes.clone() };
    let op = MultiHeadCacheAttention::new(attributes).unwrap();
    let op = op.with_backends(AttentionBackend::Reference, Backend::Reference);
    let mut results = [(); 2].map(|()| {
        (
            Tensor::zeros(call.types.t1, call.inputs.current_key.shape().to_vec()).unwrap(),
            call.cache.clone(),
            call.scale.clone(),
        )
    });
    let [host, device] = results.each_mut();

    let stored = backends::inputs_of(&call.inputs);
    let query = stored.current_key.clone();
    let inputs_on_host = CacheAttentionInputs { query, stored, decoding_batches: (&0).into(), attn_mask: None };
    let scale = host.2.as_mut().map(backends::write);
    let checked = op.check(&inputs_on_host, backends::write(&mut host.1), scale).unwrap();
    checked.run(backends::write(&mut host.0), &Serial).unwrap();

    op.prepare_device::<Host>(call.types.t1, call.cache.element(), call.scale.as_ref().map(Tensor::element), stream)
        .unwrap();
    let (query, stored) = (read(&call.inputs.current_key, stream), inputs(call, stream));
    let inputs = CacheAttentionInputs { query, stored, decoding_batches: (&0).into(), attn_mask: None };
    let scale = device.2.as_mut().map(|scale| write(scale, stream));
    let checked = op.check_device(inputs, write(&mut device.1, stream), scale).unwrap();
    // SAFETY: the stream lives, all slices are used by it, and this device writes no status word.
    unsafe { checked.launch_raw_alloc(write(&mut device.0, stream), 0, stream) }.unwrap();
    results
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn calls_on_a_second_device_are_those_of_the_host(call in calls(8, 8)) {
        let stream = Stream::default();
        let expected = call.run(Backend::Reference, |call, outputs| call.run(outputs, &Serial).unwrap());
        prop_assert!(launch(&call, &stream, &stream) == Ok(expected));
        prop_assert_eq!(stream.0.take(), ["run"]);
        let other = Stream::default();
        prop_assert_eq!(launch(&call, &stream, &other), Err(Error::OtherStream { input: "current_key" }));
        let has_heads = call.inputs.current_key.shape()[1..].iter().all(|&len| len > 0);
        if has_heads && call.types.t1 != ElementType::Int8 {
            let [expected, got] = attend(&call, &stream);
            prop_assert!(got == expected);
            prop_assert_eq!(stream.0.take(), ["prepare_attention", "prepare", "with_scratch", "attend"]);
        }
        prop_assert_eq!(other, Stream::default());
    }
}
