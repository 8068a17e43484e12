//! A call of any operator on the GPU, with tensors of the host.

use std::collections::BTreeMap;

use kvcache_conformance::backends::{operator, read};
use kvcache_conformance::{Call, CallResult, Outcome, Tensor};
use kvcache_op::cuda::cudarc::driver::CudaGraph;
use kvcache_op::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kvcache_op::cuda::{self, DeviceMut, DeviceRef};
use kvcache_op::{Checked, ElementType, Error, Operands};

use crate::device::{Buffer, Gpu, Result};

/// The host's check of a call whose tensors lie where `at` says by their names; `rows` in place of `kvstarts`.
///
/// # Safety
/// Nothing is launched, or tensors are at these addresses until the stream is done with the call.
pub unsafe fn check<'a>(
    call: &'a Call,
    rows: Option<usize>,
    at: &dyn Fn(&str) -> u64,
) -> std::result::Result<Checked<'a>, Error> {
    let kind = call.operator.kind();
    // SAFETY: the caller names the addresses of tensors of these types and shapes: see `# Safety`.
    let state = |name: &str, tensor: &Tensor| unsafe {
        DeviceMut::from_raw_parts(tensor.element(), tensor.shape(), at(name)).into()
    };
    // SAFETY: as above.
    let input = |name: &str, tensor: &Tensor| unsafe {
        DeviceRef::from_raw_parts(tensor.element(), tensor.shape(), at(name)).into()
    };
    let operand = |&name: &&'static str| match name {
        "cache" => call.cache.as_ref().map(|tensor| state(name, tensor)),
        "scale" => call.scale.as_ref().map(|tensor| state(name, tensor)),
        "kvstarts" if rows.is_some() && kind.is_on_host(name) => None,
        name if kind.is_on_host(name) => call.inputs.get(name).map(|tensor| read(tensor).into()),
        name => call.inputs.get(name).map(|tensor| input(name, tensor)),
    };
    let mut operands: Operands<'a> = kind.inputs().iter().map(operand).collect();
    if let Some(rows) = rows {
        operands = operands.with_rows_at_most(rows);
    }
    operator(call.operator, &call.attributes, &call.floats)?.check(operands)
}

/// What a call writes beside its state.
pub struct Written {
    pub outputs: Vec<Buffer>,
    scratch: Option<Buffer>,
}

impl Written {
    /// Memory for what the call writes.
    pub fn new(gpu: &Gpu, checked: &Checked<'_>, options: CallOptions) -> Result<Self> {
        let expected = checked.outputs().iter().filter(|output| options.has_mass || !output.optional);
        let outputs: Vec<_> =
            expected.map(|output| options.output(gpu, output.element, &output.shape)).collect::<Result<_>>()?;
        let scratch = match checked.scratch_bytes(outputs.len())? {
            0 => None,
            bytes => Some(Buffer::untouched(gpu, ElementType::Int8, &[bytes], 0)?),
        };
        Ok(Self { outputs, scratch })
    }

    pub fn launch(&self, gpu: &Gpu, checked: Checked<'_>) -> Result<()> {
        let scratch = self.scratch.as_ref().map(|scratch| write(gpu, scratch));
        Ok(checked.launch(written(gpu, &self.outputs), scratch, &gpu.status, &gpu.stream)?)
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
        let checked = self.check(call, rows)?;
        let written = Written::new(gpu, &checked, self.options)?;
        let has_static_scales = call.attributes.get("quant_type") == Some(&2);
        self.inputs.values().try_for_each(|input| input.allow(gpu, false))?;
        self.scale.iter().try_for_each(|scale| scale.allow(gpu, !has_static_scales))?;
        self.cache.iter().chain(&written.outputs).chain(&written.scratch).try_for_each(|to| to.allow(gpu, true))?;
        match self.options.captured {
            true => {
                let of_state = |name: &str| match name {
                    "cache" => call.cache.as_ref(),
                    "scale" => call.scale.as_ref(),
                    _ => call.inputs.get(name),
                };
                let inputs = call.operator.kind().inputs();
                let types: Vec<_> = inputs.iter().map(|name| of_state(name).map(Tensor::element)).collect();
                operator(call.operator, &call.attributes, &call.floats)?.prepare_device(&types, &gpu.stream)?;
                captured(gpu, || written.launch(gpu, checked))?.launch()?;
            }
            false => written.launch(gpu, checked)?,
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

pub fn written(gpu: &Gpu, outputs: &[Buffer]) -> Vec<DeviceMut<'static>> {
    outputs.iter().map(|output| write(gpu, output)).collect()
}

/// A graph of what `launch` puts into the stream.
pub fn captured(gpu: &Gpu, launch: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    gpu.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let launched = launch();
    let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    Ok(graph?.ok_or("there is no graph")?)
}
