//! A GPU, and tensors in its memory.

use std::error::Error;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::thread;

use kvcache_conformance::Tensor;
use kvcache_emulation_ptx::Emulation;
use kvcache_op::ElementType;
use kvcache_op::cuda::cudarc::driver::sys::{self, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUresult};
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

    /// A device of its own, that runs so, where it is emulated; else the first GPU.
    pub fn emulated(emulation: &Emulation) -> Result<Self> {
        let gpu = Self::new()?;
        if !gpu.is_emulated()? {
            return Ok(gpu);
        }
        let gpu = Self::in_context(CudaContext::new_non_primary(0, 0)?)?;
        gpu.emulate(emulation)?;
        Ok(gpu)
    }

    /// Says how an emulated device runs from now on.
    pub fn emulate(&self, emulation: &Emulation) -> Result<()> {
        type Emulate = unsafe extern "C" fn(usize, &Emulation) -> CUresult;
        static DRIVER: LazyLock<libloading::Library> = LazyLock::new(|| {
            // SAFETY: the driver is open already.
            unsafe { libloading::Library::new("libcuda.so") }.expect("the emulated driver")
        });
        // SAFETY: the emulated driver has this function.
        let emulate = unsafe { DRIVER.get::<Emulate>("kvcache_emulate") }?;
        // SAFETY: the context lives; whoever makes an `Emulation` keeps its texts.
        Ok(unsafe { emulate(self.context.cu_ctx().addr(), emulation) }.result()?)
    }

    /// Whether the driver is the one that runs on the CPU.
    pub fn is_emulated(&self) -> Result<bool> {
        Ok(self.context.name()? == "CUDA on the CPU")
    }

    /// How many calls can be made at once: one on a GPU, whose stream makes one after the other.
    pub fn jobs(&self) -> Result<NonZeroUsize> {
        Ok(if self.is_emulated()? { thread::available_parallelism()? } else { NonZeroUsize::MIN })
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

    /// A tensor of this type and shape; its bytes are any.
    pub fn of_any_bytes(gpu: &Gpu, tensor: &Tensor) -> Result<Self> {
        let bytes = tensor.bytes().len();
        // SAFETY: bytes of any value are legal.
        let slice = unsafe { gpu.stream.alloc(bytes) }?;
        Ok(Self { slice, shift: 0, element: tensor.element(), shape: tensor.shape().to_vec(), bytes })
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

    /// Lets launches on an emulated device read the tensor alone, or read and write it; what is around it, neither.
    pub fn allow(&self, gpu: &Gpu, is_written: bool) -> Result<()> {
        if self.bytes == 0 || !gpu.is_emulated()? {
            return Ok(());
        }
        let flags = match is_written {
            true => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        };
        let location = CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
        let description = CUmemAccessDesc { location, flags };
        // SAFETY: these bytes of the slice, and a description that lives.
        Ok(unsafe { sys::cuMemSetAccess(self.address(gpu), self.bytes, &description, 1) }.result()?)
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

    /// Some of the tensor's bytes.
    pub fn bytes(&self, gpu: &Gpu, range: Range<usize>) -> Result<Vec<u8>> {
        let view = self.slice.slice(self.shift + range.start..self.shift + range.end);
        Ok(if range.is_empty() { Vec::new() } else { gpu.stream.clone_dtoh(&view)? })
    }

    pub fn download(&self, gpu: &Gpu) -> Result<Tensor> {
        let bytes = self.bytes(gpu, 0..self.bytes)?;
        Ok(Tensor::new(self.element, self.shape.clone(), &bytes).expect("the bytes of its shape"))
    }
}

pub fn untouched(element: ElementType, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(element, shape.to_vec()).expect("it fits in memory");
    tensor.bytes_mut().fill(UNTOUCHED);
    tensor
}
