//! A GPU, tensors in its memory, and calls with tensors of the host.

use kvcache_conformance::backends::read;
use std::error::Error;
use std::sync::Arc;

use kvcache_conformance::{Outcome, Tensor, Tensors};
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut};
use kvcache_op::cuda::{
    self, DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, OutputRows, StatusWord, primary_context,
};
use kvcache_op::{ElementType, IndexInputs, KeyValueCache};

/// What outputs hold before a call.
pub const UNTOUCHED: u8 = 0xa5;

/// The first GPU, with a stream and a status word.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub status: StatusWord,
}

impl Gpu {
    pub fn new() -> Result<Self, Box<dyn Error>> {
        Self::in_context(primary_context(0)?)
    }

    pub fn in_context(context: Arc<CudaContext>) -> Result<Self, Box<dyn Error>> {
        Ok(Self { stream: context.default_stream(), status: StatusWord::new(&context)?, context })
    }

    /// Whether the driver is the one that runs on the CPU.
    pub fn is_emulated(&self) -> Result<bool, Box<dyn Error>> {
        Ok(self.context.name()? == "CUDA on the CPU")
    }

    /// Of golden cases those to be run with tensors that are aligned for their types only, or better. The emulated
    /// kernels run all of them without a driver in between, so a part will do here.
    pub fn some<C>(&self, cases: Vec<C>, unaligned: bool) -> Result<Vec<C>, Box<dyn Error>> {
        let step = if self.is_emulated()? { 8 } else { 1 };
        Ok(cases.into_iter().skip(usize::from(unaligned && step > 1)).step_by(step).collect())
    }

    /// Fails if the device has found something wrong.
    pub fn nothing_found(&self) -> Result<(), Box<dyn Error>> {
        let found = |status| Err(format!("the device found something wrong: {status}").into());
        self.status.take().map_or(Ok(()), found)
    }

    pub fn name(&self) -> Result<String, Box<dyn Error>> {
        let (major, minor) = self.context.compute_capability()?;
        Ok(format!("{}, sm_{major}{minor}", self.context.name()?))
    }
}

/// A tensor in the GPU's memory, `shift` bytes behind the address of an allocation.
pub struct Buffer {
    slice: CudaSlice<u8>,
    shift: usize,
    element: ElementType,
    shape: Vec<usize>,
    bytes: usize,
}

impl Buffer {
    pub fn of(gpu: &Gpu, tensor: &Tensor, shift: usize) -> Result<Self, Box<dyn Error>> {
        // An allocation has at least one byte.
        let mut bytes = vec![0; shift + tensor.bytes().len() + 1];
        bytes[shift..][..tensor.bytes().len()].copy_from_slice(tensor.bytes());
        Ok(Self {
            slice: gpu.stream.clone_htod(&bytes)?,
            shift,
            element: tensor.element(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.bytes().len(),
        })
    }

    /// A tensor whose bytes are all [`UNTOUCHED`].
    pub fn untouched(gpu: &Gpu, element: ElementType, shape: &[usize], shift: usize) -> Result<Self, Box<dyn Error>> {
        Self::of(gpu, &untouched(element, shape), shift)
    }

    pub fn element(&self) -> ElementType {
        self.element
    }

    pub fn view(&self) -> CudaView<'_, u8> {
        self.slice.slice(self.shift..self.shift + self.bytes)
    }

    pub fn view_mut(&mut self) -> CudaViewMut<'_, u8> {
        self.slice.slice_mut(self.shift..self.shift + self.bytes)
    }

    /// Overwrites the tensor by another of the same type and shape.
    pub fn upload(&mut self, gpu: &Gpu, tensor: &Tensor) -> Result<(), Box<dyn Error>> {
        assert_eq!((tensor.element(), tensor.shape()), (self.element, self.shape.as_slice()));
        if self.bytes > 0 {
            gpu.stream.memcpy_htod(tensor.bytes(), &mut self.view_mut())?;
        }
        Ok(())
    }

    pub fn download(&self, gpu: &Gpu) -> Result<Tensor, Box<dyn Error>> {
        let bytes = if self.bytes == 0 { Vec::new() } else { gpu.stream.clone_dtoh(&self.view())? };
        Ok(Tensor::new(self.element, self.shape.clone(), &bytes).expect("the bytes of its shape"))
    }

    /// The tensor for a call, from one of its views.
    pub fn read<'a>(&self, view: &'a CudaView<'a, u8>, stream: &'a CudaStream) -> DeviceRef<'a> {
        DeviceRef::from_bytes(self.element, self.shape.as_slice(), view, stream)
    }
}

/// What became of a call; an error other than a refusal is one of the test.
pub fn outcome<T>(result: Result<T, Box<dyn Error>>) -> Result<Outcome<T>, Box<dyn Error>> {
    match result.map_err(|error| error.downcast::<cuda::Error>()) {
        Ok(outputs) => Ok(Outcome::Done(outputs)),
        Err(Ok(error)) if matches!(*error, cuda::Error::Operator(_)) => {
            Ok(Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() })
        }
        Err(Ok(error)) => Err(error),
        Err(Err(error)) => Err(error),
    }
}

pub fn untouched(element: ElementType, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape.to_vec()).expect("it fits in memory");
    tensor.bytes_mut().fill(UNTOUCHED);
    tensor
}

pub struct Outputs {
    pub key: Tensor,
    pub value: Tensor,
}

/// The inputs of a call on the device, except those that are read on the host.
pub struct Uploaded {
    pub current: [Buffer; 2],
    pub seqstarts: Buffer,
    pub cachestarts: Buffer,
    pub start_pos: Buffer,
}

impl Uploaded {
    pub fn new(gpu: &Gpu, inputs: &Tensors, unaligned: bool) -> Result<Self, Box<dyn Error>> {
        let shift = shift(inputs["current_key"].element(), unaligned);
        Ok(Self {
            current: [
                Buffer::of(gpu, &inputs["current_key"], shift)?,
                Buffer::of(gpu, &inputs["current_value"], shift)?,
            ],
            seqstarts: Buffer::of(gpu, &inputs["seqstarts"], 0)?,
            cachestarts: Buffer::of(gpu, &inputs["cachestarts"], 0)?,
            start_pos: Buffer::of(gpu, &inputs["start_pos"], 0)?,
        })
    }
}

/// A shift that leaves addresses aligned for the type and no more.
pub fn shift(element: ElementType, unaligned: bool) -> usize {
    if unaligned { element.align() } else { 0 }
}

/// Puts a call into the GPU's stream, with its tensors in the GPU's memory.
pub fn launch(
    gpu: &Gpu,
    op: &KeyValueCache,
    (inputs, uploaded): (&Tensors, &Uploaded),
    rows: OutputRows<'_>,
    (cache, scale): (&mut Buffer, Option<&mut Buffer>),
    [key, value]: [&mut Buffer; 2],
) -> Result<(), Box<dyn Error>> {
    let stream = &*gpu.stream;
    let [mut cache, mut key, mut value] = [cache, key, value].map(Writable::new);
    let mut scale = scale.map(Writable::new);
    let current = uploaded.current.each_ref().map(Buffer::view);
    let (seqstarts, cachestarts) = (uploaded.seqstarts.view(), uploaded.cachestarts.view());
    let start_pos = uploaded.start_pos.view();
    let device_inputs = DeviceInputs {
        current_key: uploaded.current[0].read(&current[0], stream),
        current_value: uploaded.current[1].read(&current[1], stream),
        indices: IndexInputs {
            seqstarts: uploaded.seqstarts.read(&seqstarts, stream),
            cachestarts: uploaded.cachestarts.read(&cachestarts, stream),
            start_pos: uploaded.start_pos.read(&start_pos, stream),
            kvstarts: rows,
            max_seqlen: read(&inputs["max_seqlen"]),
            max_kvlen: read(&inputs["max_kvlen"]),
        },
    };
    let scale = scale.as_mut().map(|scale| scale.tensor(stream));
    let call = op.check_device(device_inputs, cache.tensor(stream), scale).map_err(cuda::Error::from)?;
    let outputs = DeviceOutputs { key: key.tensor(stream), value: value.tensor(stream) };
    Ok(call.launch(outputs, &gpu.status, stream)?)
}

pub struct Writable<'a> {
    element: ElementType,
    shape: Vec<usize>,
    view: CudaViewMut<'a, u8>,
}

impl<'a> Writable<'a> {
    pub fn new(buffer: &'a mut Buffer) -> Self {
        Self { element: buffer.element, shape: buffer.shape.clone(), view: buffer.view_mut() }
    }

    pub fn tensor<'b>(&'b mut self, stream: &'b CudaStream) -> DeviceMut<'b> {
        DeviceMut::from_bytes(self.element, self.shape.as_slice(), &mut self.view, stream)
    }
}

/// A call with tensors of the host, done when this returns; only cache and scale stay on the GPU. What the device found
/// is left in the status word.
pub fn call(
    gpu: &Gpu,
    op: &KeyValueCache,
    inputs: &Tensors,
    state: (&mut Buffer, Option<&mut Buffer>),
    unaligned: bool,
) -> Result<Outputs, Box<dyn Error>> {
    // Outputs as they must be if the call is legal; if it is not, it is refused before they matter.
    let total = inputs["kvstarts"]
        .bytes()
        .rchunks_exact(8)
        .next()
        .map_or(0, |bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")).clamp(0, 1 << 20));
    let mut shape = inputs["current_key"].shape().to_vec();
    if let [rows, heads, _] = &mut shape[..] {
        *rows = total as usize;
        *heads *= op.attributes().num_repeat.min(64) as usize;
    }
    let uploaded = Uploaded::new(gpu, inputs, unaligned)?;
    let t1 = inputs["current_key"].element();
    let output = || Buffer::untouched(gpu, t1, &shape, shift(t1, unaligned));
    let (mut key, mut value) = (output()?, output()?);
    let rows = OutputRows::Kvstarts(read(&inputs["kvstarts"]));
    launch(gpu, op, (inputs, &uploaded), rows, state, [&mut key, &mut value])?;
    gpu.stream.synchronize()?;
    Ok(Outputs { key: key.download(gpu)?, value: value.download(gpu)? })
}
