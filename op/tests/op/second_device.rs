//! A second device, which keeps what it is given: all that a device needs is in the trait, and each address that
//! reaches it is that of its tensor.

use std::cell::RefCell;
use std::convert::Infallible;

use kvcache_conformance::{Tensor, backends};
use kvcache_op::device::{
    Device, DeviceAttention, DeviceInputs, DeviceKeys, DeviceMut, DeviceOutputs, DeviceProblem, DeviceRef,
    DeviceStores, Error, OutputRows, Types,
};
use kvcache_op::{
    AttentionAttributes, CacheAttentionAttributes, CacheAttentionInputs, ElementType, IndexInputs, KeyValueCache,
    MultiHeadCacheAttention,
};
use kvcache_testing::random::{RandomCall, calls};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Host;

/// What a stream has been given.
#[derive(Debug)]
enum Task {
    Prepare,
    PrepareAttention,
    Run(DeviceProblem),
    Attend(DeviceAttention),
}

#[derive(Debug, Default)]
struct Stream(RefCell<Vec<Task>>);

/// Where the scratch memory of attention is.
const SCRATCH: u64 = 1 << 40;

// SAFETY: a use is a reference to its stream, which is compared; a call accesses no memory.
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
        Ok(*status)
    }

    fn queue(stream: &Stream) -> Result<&Stream, Infallible> {
        Ok(stream)
    }

    unsafe fn raw_queue<'a>(stream: *const Stream) -> Result<&'a Stream, Infallible> {
        // SAFETY: `stream` lives for 'a: see `# Safety`.
        Ok(unsafe { &*stream })
    }

    fn prepare(queue: &&Stream, _: Types) -> Result<(), Infallible> {
        queue.0.borrow_mut().push(Task::Prepare);
        Ok(())
    }

    fn prepare_attention(queue: &&Stream, _: Types, _: usize) -> Result<(), Infallible> {
        queue.0.borrow_mut().push(Task::PrepareAttention);
        Ok(())
    }

    unsafe fn run(queue: &&Stream, problem: &DeviceProblem) -> Result<(), Infallible> {
        queue.0.borrow_mut().push(Task::Run(*problem));
        Ok(())
    }

    fn scratch_bytes(_: &DeviceAttention) -> Result<usize, Infallible> {
        Ok(64)
    }

    fn with_scratch<R>(_: &&Stream, bytes: usize, run: impl FnOnce(u64) -> R) -> Result<R, Infallible> {
        assert_eq!(bytes, 64);
        Ok(run(SCRATCH))
    }

    unsafe fn attend(queue: &&Stream, call: &DeviceAttention) -> Result<(), Infallible> {
        queue.0.borrow_mut().push(Task::Attend(*call));
        Ok(())
    }
}

fn address(tensor: &Tensor) -> u64 {
    tensor.bytes().as_ptr().addr() as u64
}

/// A tensor of the host as one of the device, in a slice that is used by a stream.
fn read<'a>(tensor: &'a Tensor, stream: &'a Stream) -> DeviceRef<'a, Host> {
    // SAFETY: the slice is borrowed for 'a, and no call accesses it.
    unsafe { DeviceRef::of_slice(tensor.element(), tensor.shape(), (address(tensor), tensor.bytes().len()), stream) }
}

fn write<'a>(tensor: &'a Tensor, stream: &'a Stream) -> DeviceMut<'a, Host> {
    // SAFETY: as above.
    unsafe { DeviceMut::of_slice(tensor.element(), tensor.shape(), (address(tensor), tensor.bytes().len()), stream) }
}

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

/// The call, launched on `stream` with slices that are used by another one or by it, and the addresses of its outputs.
fn launch(call: &RandomCall, used_by: &Stream, stream: &Stream) -> Result<[u64; 2], Error<Host>> {
    let op = KeyValueCache::new(call.attributes.clone())?;
    let scale = call.scale.as_ref().map(|scale| write(scale, used_by));
    let checked = op.check_device(inputs(call, used_by), write(&call.cache, used_by), scale)?;
    let [key, value] = [(); 2].map(|()| Tensor::zeros(call.types.t1, checked.output_shape().to_vec()).unwrap());
    checked.launch(DeviceOutputs { key: write(&key, used_by), value: write(&value, used_by) }, &7, stream)?;
    Ok([&key, &value].map(address))
}

/// Attention of the current keys over the cache: what the device is given.
fn attend(call: &RandomCall, stream: &Stream) -> DeviceAttention {
    let [_, heads, head_dim] = call.inputs.current_key.shape().try_into().unwrap();
    let attention =
        AttentionAttributes { num_heads: heads as i64, head_dim: head_dim as i64, ..AttentionAttributes::default() };
    let attributes = CacheAttentionAttributes { attention, cache: call.attributes.clone() };
    let op = MultiHeadCacheAttention::new(attributes).unwrap();
    let (t2, t3) = (call.cache.element(), call.scale.as_ref().map(Tensor::element));
    op.prepare_device::<Host>(call.types.t1, t2, t3, stream).unwrap();
    let (query, stored) = (read(&call.inputs.current_key, stream), inputs(call, stream));
    let inputs = CacheAttentionInputs { query, stored, decoding_batches: (&0).into(), attn_mask: None };
    let scale = call.scale.as_ref().map(|scale| write(scale, stream));
    let checked = op.check_device(inputs, write(&call.cache, stream), scale).unwrap();
    let output = Tensor::zeros(call.types.t1, call.inputs.current_key.shape().to_vec()).unwrap();
    // SAFETY: the stream lives, all slices are used by it, and this device accesses no memory.
    unsafe { checked.launch_raw_alloc(write(&output, stream), 7, stream) }.unwrap();
    let Task::Attend(given) = stream.0.borrow_mut().pop().unwrap() else { panic!("it attends at the end") };
    assert_eq!((given.attn_output, given.scratch), (address(&output), SCRATCH));
    given
}

fn are_of(call: &RandomCall, stores: &DeviceStores) -> bool {
    let inputs = &call.inputs;
    let current = [&inputs.current_key, &inputs.current_value].map(address);
    let indices = [&inputs.seqstarts, &inputs.start_pos, &inputs.cachestarts].map(address);
    let scale = call.scale.as_ref().is_none_or(|scale| stores.scale == address(scale));
    scale
        && (stores.current, stores.cache, stores.status) == (current, address(&call.cache), 7)
        && [stores.seqstarts, stores.start_pos, stores.cachestarts] == indices
        && stores.current_rows == inputs.current_key.shape()[0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_second_device_is_given_each_tensor(call in calls(8, 8)) {
        let (stream, other) = (Stream::default(), Stream::default());
        let outputs = launch(&call, &stream, &stream).unwrap();
        let given = stream.0.take();
        let [Task::Run(problem)] = &given[..] else { panic!("{given:?}") };
        prop_assert!(are_of(&call, &problem.stores) && problem.outputs == outputs);
        prop_assert_eq!(launch(&call, &stream, &other), Err(Error::OtherStream { input: "current_key" }));
        let has_heads = call.inputs.current_key.shape()[1..].iter().all(|&len| len > 0);
        if has_heads && call.types.t1 != ElementType::Int8 {
            let given = attend(&call, &stream);
            let DeviceKeys::Cache(stores) = &given.keys else { panic!("{given:?}") };
            prop_assert!(are_of(&call, stores) && given.query == address(&call.inputs.current_key));
            let prepared = stream.0.take();
            prop_assert!(matches!(prepared[..], [Task::PrepareAttention, Task::Prepare]), "{:?}", prepared);
        }
        prop_assert!(other.0.take().is_empty());
    }
}
