//! A GPU, and tensors in its memory.

use std::error::Error;
use std::sync::Arc;

use kvcache_conformance::Tensor;
use kvcache_op::ElementType;
use kvcache_op::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use kvcache_op::cuda::{StatusWord, primary_context};

/// What outputs hold before a call.
pub const UNTOUCHED: u8 = 0xa5;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The first GPU, with a stream and a status word.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub status: StatusWord,
}

impl Gpu {
    pub fn new() -> Result<Self> {
        Self::in_context(primary_context(0)?)
    }

    pub fn in_context(context: Arc<CudaContext>) -> Result<Self> {
        Ok(Self { stream: context.default_stream(), status: StatusWord::new(&context)?, context })
    }

    /// With a stream that can be captured: its slices are not tracked by events, which a capture must not wait for.
    pub fn capturable(context: Arc<CudaContext>) -> Result<Self> {
        // SAFETY: the tests of graphs use one stream.
        unsafe { context.disable_event_tracking() };
        Ok(Self { stream: context.new_stream()?, status: StatusWord::new(&context)?, context })
    }

    /// Whether the driver is the one that runs on the CPU.
    pub fn is_emulated(&self) -> Result<bool> {
        Ok(self.context.name()? == "CUDA on the CPU")
    }

    /// Fails if the device has found something wrong.
    pub fn nothing_found(&self) -> Result<()> {
        let found = |status| Err(format!("the device found something wrong: {status}").into());
        self.status.take().map_or(Ok(()), found)
    }

    pub fn name(&self) -> Result<String> {
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
    pub fn of(gpu: &Gpu, tensor: &Tensor, shift: usize) -> Result<Self> {
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
    pub fn untouched(gpu: &Gpu, element: ElementType, shape: &[usize], shift: usize) -> Result<Self> {
        Self::of(gpu, &untouched(element, shape), shift)
    }

    pub fn element(&self) -> ElementType {
        self.element
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn address(&self, gpu: &Gpu) -> u64 {
        self.slice.device_ptr(&gpu.stream).0 + self.shift as u64
    }

    /// Overwrites the tensor by another of the same type and shape.
    pub fn upload(&mut self, gpu: &Gpu, tensor: &Tensor) -> Result<()> {
        assert_eq!((tensor.element(), tensor.shape()), (self.element, self.shape.as_slice()));
        if self.bytes > 0 {
            let mut view = self.slice.slice_mut(self.shift..self.shift + self.bytes);
            gpu.stream.memcpy_htod(tensor.bytes(), &mut view)?;
        }
        Ok(())
    }

    pub fn download(&self, gpu: &Gpu) -> Result<Tensor> {
        let view = self.slice.slice(self.shift..self.shift + self.bytes);
        let bytes = if self.bytes == 0 { Vec::new() } else { gpu.stream.clone_dtoh(&view)? };
        Ok(Tensor::new(self.element, self.shape.clone(), &bytes).expect("the bytes of its shape"))
    }
}

pub fn untouched(element: ElementType, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape.to_vec()).expect("it fits in memory");
    tensor.bytes_mut().fill(UNTOUCHED);
    tensor
}
