//! A call of any operator on the GPU, with tensors of the host.

use std::collections::BTreeMap;

use kvcache_conformance::backends::{attention_attributes, cache_attributes, read, static_attributes};
use kvcache_conformance::{Call, CallResult, Operator, Outcome, Tensor};
use kvcache_op::cuda::cudarc::driver::CudaGraph;
use kvcache_op::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::{
    self, DeviceAttentionCall, DeviceAttentionInputs, DeviceCacheAttentionInputs, DeviceCall, DeviceInputs, DeviceMut,
    DeviceOutputs, DeviceRef, OutputRows, StaticDeviceInputs,
};
use kvcache_op::{
    ElementType, Error, IndexInputs, KeyValueCache, MultiHeadAttention, MultiHeadCacheAttention, StaticKeyValueCache,
    TensorRef,
};

use crate::device::{Buffer, Gpu, Result};

/// A call that the host has checked.
pub enum Checked<'a> {
    Stores(DeviceCall<'a>),
    Static(DeviceCall<'a, 4>),
    Attention(DeviceAttentionCall<'a>),
}

/// The host's check of a call whose tensors lie where `at` says by their names; `rows` in place of `kvstarts`.
///
/// # Safety
/// Nothing is launched, or tensors are at these addresses until the stream is done with the call.
pub unsafe fn check<'a>(
    call: &'a Call,
    rows: Option<usize>,
    at: &dyn Fn(&str) -> u64,
) -> std::result::Result<Checked<'a>, Error> {
    // SAFETY: the caller names the addresses of tensors of these types and shapes: see `# Safety`.
    let at_address =
        |name: &str, tensor: &Tensor| unsafe { DeviceRef::from_raw_parts(tensor.element(), tensor.shape(), at(name)) };
    let given = |name: &str| call.inputs.get(name).map(|tensor| at_address(name, tensor));
    let input = |name: &str| given(name).expect("the operator has the input");
    let host = |name: &str| -> TensorRef<'a> { read(&call.inputs[name]) };
    let state = |name: &str, tensor: &Option<Tensor>| {
        // SAFETY: as above.
        tensor.as_ref().map(|tensor| unsafe { DeviceMut::from_raw_parts(tensor.element(), tensor.shape(), at(name)) })
    };
    let (cache, scale) = (state("cache", &call.cache), state("scale", &call.scale));
    let cache = || cache.expect("the operator has a cache");
    let stored = || DeviceInputs {
        current_key: input("current_key"),
        current_value: input("current_value"),
        indices: IndexInputs {
            seqstarts: input("seqstarts"),
            cachestarts: input("cachestarts"),
            start_pos: input("start_pos"),
            kvstarts: rows.map_or_else(|| OutputRows::Kvstarts(host("kvstarts")), OutputRows::AtMost),
            max_seqlen: host("max_seqlen"),
            max_kvlen: host("max_kvlen"),
        },
    };
    match call.operator {
        Operator::KeyValueCache => {
            let op = KeyValueCache::new(cache_attributes(&call.attributes))?;
            op.check_device(stored(), cache(), scale).map(Checked::Stores)
        }
        Operator::StaticKeyValueCache => {
            let inputs = StaticDeviceInputs {
                current_key: input("current_key"),
                current_value: input("current_value"),
                start_pos: host("start_pos"),
            };
            let op = StaticKeyValueCache::new(static_attributes(&call.attributes))?;
            op.check_device(inputs, cache(), scale).map(Checked::Static)
        }
        Operator::MultiHeadAttention => {
            let inputs = DeviceAttentionInputs {
                query: input("query"),
                key: input("key"),
                value: input("value"),
                seqstarts: input("seqstarts"),
                kvstarts: input("kvstarts"),
                decoding_batches: host("decoding_batches"),
                max_seqlen: host("max_seqlen"),
                max_kvlen: host("max_kvlen"),
                attn_mask: given("attn_mask"),
                head_sink: given("head_sink"),
                exact_rows: true,
            };
            let op = MultiHeadAttention::new(attention_attributes(&call.attributes, &call.floats).attention)?;
            op.check_device(inputs).map(Checked::Attention)
        }
        Operator::MultiHeadCacheAttention => {
            let inputs = DeviceCacheAttentionInputs {
                query: input("query"),
                stored: stored(),
                decoding_batches: host("decoding_batches"),
                attn_mask: given("attn_mask"),
                head_sink: given("head_sink"),
            };
            let op = MultiHeadCacheAttention::new(attention_attributes(&call.attributes, &call.floats))?;
            op.check_device(inputs, cache(), scale).map(Checked::Attention)
        }
    }
}

/// What a call writes beside its state.
pub struct Written {
    pub outputs: Vec<Buffer>,
    scratch: Option<Buffer>,
}

impl<'a> Checked<'a> {
    /// The call, and memory for what it writes.
    pub fn with_outputs(self, gpu: &Gpu, t1: ElementType, options: CallOptions) -> Result<(Self, Written)> {
        let output = |shape: &[usize]| options.output(gpu, t1, shape);
        match self {
            Self::Stores(call) => {
                let outputs = vec![output(&call.output_shape())?, output(&call.output_shape())?];
                Ok((Self::Stores(call), Written { outputs, scratch: None }))
            }
            Self::Static(call) => {
                let outputs = vec![output(&call.output_shape())?, output(&call.output_shape())?];
                Ok((Self::Static(call), Written { outputs, scratch: None }))
            }
            Self::Attention(mut call) => {
                let mut outputs = vec![output(&call.output_shape())?];
                if options.has_mass {
                    let mass = options.output(gpu, ElementType::Float32, &call.mass_shape())?;
                    call = call.with_mass(write(gpu, &mass))?;
                    outputs.push(mass);
                }
                let scratch = Some(Buffer::untouched(gpu, ElementType::Int8, &[call.scratch_bytes()?], 0)?);
                Ok((Self::Attention(call), Written { outputs, scratch }))
            }
        }
    }

    pub fn launch(self, gpu: &Gpu, Written { outputs, scratch }: &Written) -> Result<()> {
        let (status, stream) = (&gpu.status, &gpu.stream);
        match self {
            Self::Stores(call) => call.launch(written(gpu, outputs), status, stream)?,
            Self::Static(call) => call.launch(written(gpu, outputs), status, stream)?,
            Self::Attention(call) => {
                let scratch = scratch.as_ref().map(|scratch| write(gpu, scratch));
                call.launch(write(gpu, &outputs[0]), scratch, status, stream)?;
            }
        }
        Ok(())
    }
}

/// How a call is made.
#[derive(Clone, Copy, Default)]
pub struct CallOptions {
    /// Whether tensors are aligned for their types and no more.
    pub unaligned: bool,
    /// Whether attention gives its mass, too.
    pub has_mass: bool,
    /// Whether the call is captured into a graph, which is launched.
    pub captured: bool,
    /// Other bounds than the call's `max_seqlen` and `max_kvlen`, which then may be wrong.
    pub bounds: Option<[i64; 2]>,
}

impl CallOptions {
    pub fn upload(self, gpu: &Gpu, tensor: &Tensor) -> Result<Buffer> {
        Buffer::of(gpu, tensor, self.shift(tensor.element()))
    }

    fn output(self, gpu: &Gpu, element: ElementType, shape: &[usize]) -> Result<Buffer> {
        Buffer::untouched(gpu, element, shape, self.shift(element))
    }

    fn shift(self, element: ElementType) -> usize {
        if self.unaligned { element.align() } else { 0 }
    }
}

/// The tensors of a call in the GPU's memory.
pub struct Uploaded<'g> {
    gpu: &'g Gpu,
    options: CallOptions,
    pub inputs: BTreeMap<&'static str, Buffer>,
    pub cache: Option<Buffer>,
    pub scale: Option<Buffer>,
}

impl<'g> Uploaded<'g> {
    pub fn new(gpu: &'g Gpu, call: &Call, options: CallOptions) -> Result<Self> {
        let state = |tensor: &Option<Tensor>| tensor.as_ref().map(|tensor| options.upload(gpu, tensor)).transpose();
        let (cache, scale) = (state(&call.cache)?, state(&call.scale)?);
        let mut uploaded = Self { gpu, options, inputs: BTreeMap::new(), cache, scale };
        uploaded.next(call)?;
        Ok(uploaded)
    }

    /// The inputs of the next call; cache and scale stay.
    pub fn next(&mut self, call: &Call) -> Result<()> {
        let upload = |(&name, tensor)| Ok((name, self.options.upload(self.gpu, tensor)?));
        self.inputs = call.inputs.iter().map(upload).collect::<Result<_>>()?;
        Ok(())
    }

    fn at(&self, name: &str) -> u64 {
        let buffer = match name {
            "cache" => self.cache.as_ref(),
            "scale" => self.scale.as_ref(),
            _ => self.inputs.get(name),
        };
        buffer.map_or(0, |buffer| buffer.address(self.gpu))
    }

    pub fn state(&self) -> Result<[Option<Tensor>; 2]> {
        let download = |buffer: &Option<Buffer>| buffer.as_ref().map(|buffer| buffer.download(self.gpu)).transpose();
        Ok([download(&self.cache)?, download(&self.scale)?])
    }

    /// The host's check of the call.
    pub fn check<'a>(&self, call: &'a Call, rows: Option<usize>) -> Result<Checked<'a>> {
        // SAFETY: the tensors are uploaded, of these types and shapes; all tests synchronize before they drop them.
        Ok(unsafe { check(call, rows, &|name| self.at(name)) }.map_err(cuda::Error::from)?)
    }

    /// Makes the call; gives its outputs, which are done when this returns. What the device found is left in the status
    /// word.
    pub fn run(&self, call: &Call) -> Result<Vec<Tensor>> {
        let (gpu, bounded) = (self.gpu, self.options.bounds.map(|bounds| with_bounds(call, bounds)));
        // The host compares bounds with `kvstarts` where it is given these.
        let all_rows = |call: &Call| call.inputs["kvstarts"].indices().last().map_or(0, |&rows| rows as usize);
        let (rows, call) = (bounded.as_ref().map(all_rows), bounded.as_ref().unwrap_or(call));
        let (checked, written) = self.check(call, rows)?.with_outputs(gpu, call.t1(), self.options)?;
        let has_static_scales = call.attributes.get("quant_type") == Some(&2);
        self.inputs.values().try_for_each(|input| input.allow(gpu, false))?;
        self.scale.iter().try_for_each(|scale| scale.allow(gpu, !has_static_scales))?;
        self.cache.iter().chain(&written.outputs).chain(&written.scratch).try_for_each(|to| to.allow(gpu, true))?;
        match self.options.captured {
            true => {
                if let Checked::Static(_) = checked {
                    let op = StaticKeyValueCache::new(static_attributes(&call.attributes))?;
                    let t3 = call.scale.as_ref().map(Tensor::element);
                    op.prepare_device(call.t1(), call.cache().element(), t3, &gpu.stream)?;
                }
                captured(gpu, || checked.launch(gpu, &written))?.launch()?;
            }
            false => checked.launch(gpu, &written)?,
        }
        gpu.stream.synchronize()?;
        written.outputs.iter().map(|output| output.download(gpu)).collect()
    }

    /// What the call leaves behind.
    pub fn after(&self, call: &Call) -> Result<CallResult> {
        let outcome = Outcome::Done(self.run(call)?);
        let [cache, scale] = self.state()?;
        Ok(CallResult { outcome, cache, scale })
    }
}

/// The call with other values of `max_seqlen` and `max_kvlen`.
fn with_bounds(call: &Call, bounds: [i64; 2]) -> Call {
    let mut call = call.clone();
    let bounds = bounds.map(|bound| Tensor::of_indices(&[bound], &[1]));
    call.inputs.extend(["max_seqlen", "max_kvlen"].into_iter().zip(bounds));
    call
}

/// A buffer for a call to write. The tests keep it until the stream is done with the call.
pub fn write(gpu: &Gpu, buffer: &Buffer) -> DeviceMut<'static> {
    // SAFETY: memory of this type and shape; the stream alone uses it until it is synchronized.
    unsafe { DeviceMut::from_raw_parts(buffer.element(), buffer.shape(), buffer.address(gpu)) }
}

pub fn written(gpu: &Gpu, outputs: &[Buffer]) -> DeviceOutputs<'static> {
    DeviceOutputs { key: write(gpu, &outputs[0]), value: write(gpu, &outputs[1]) }
}

/// A graph of what `launch` puts into the stream.
pub fn captured(gpu: &Gpu, launch: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let launched = launch();
    let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    Ok(graph?.ok_or("there is no graph")?)
}
