//! Borrowed tensors in a CUDA device's memory, and the use of their slices by a stream.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use kvcache_kernels::cuda::cudarc;
use kvcache_schema::{ElementType, shape};

use super::error::Error;
use crate::operands::Operand;
use crate::tensor::{Defect, Element, Shape, TensorMut, TensorRef};

/// A tensor in a CUDA device's memory, to be read.
#[derive(Debug)]
pub struct DeviceRef<'a> {
    /// The tensor; its address is a device address, which the host never dereferences.
    pub(crate) tensor: TensorRef<'a>,
    guard: Option<Box<StreamGuard<'a>>>,
}

/// A tensor in a CUDA device's memory, to be written.
#[derive(Debug)]
pub struct DeviceMut<'a> {
    /// The tensor; its address is a device address, which the host never dereferences.
    pub(crate) tensor: TensorMut<'a>,
    guard: Option<Box<StreamGuard<'a>>>,
}

impl<'a> DeviceRef<'a> {
    /// A slice as a row-major tensor of this shape, to be read by a call on this stream.
    pub fn new<T: Element>(shape: impl Into<Shape>, slice: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Self {
        Self::of(T::TYPE, shape.into(), slice, stream)
    }

    /// A tensor from bytes, little-endian: for every type, int4 included, which has `ceil(n / 2)` bytes for n elements.
    pub fn from_bytes(
        element: ElementType,
        shape: impl Into<Shape>,
        slice: &'a impl DevicePtr<u8>,
        stream: &'a CudaStream,
    ) -> Self {
        Self::of(element, shape.into(), slice, stream)
    }

    /// A tensor at an address of a device.
    ///
    /// # Safety
    /// Whenever the stream of a call (or of a graph that a call was captured into) runs the call, the address is
    /// accessible to the device for reads of a row-major tensor of this type and shape (any address where it has no
    /// elements), and nothing writes it until the call is done.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, address: u64) -> Self {
        let data = std::ptr::without_provenance(address as usize);
        // SAFETY: nothing but a call on a device, through its stream, reads the memory, which is then accessible to the
        // device and not written: see `# Safety`.
        Self { tensor: unsafe { TensorRef::from_raw_parts(element, shape, data) }, guard: None }
    }

    fn of<T>(element: ElementType, shape: Shape, slice: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Self {
        let (address, end) = slice.device_ptr(stream);
        let defect = length_defect(element, &shape, slice.num_bytes());
        // SAFETY: the slice is borrowed for 'a; a call uses it through its stream only, in which every later writer of
        // the slice waits for it. A tensor of other bytes than the slice gets a defect, with which no call is made.
        let mut own = unsafe { Self::from_raw_parts(element, shape, address) };
        own.tensor.defect = defect;
        Self { guard: Some(Box::new(StreamGuard::new(slice.stream(), stream, end))), ..own }
    }
}

impl<'a> DeviceMut<'a> {
    /// A slice as a row-major tensor of this shape, to be written by a call on this stream.
    pub fn new<T: Element>(
        shape: impl Into<Shape>,
        slice: &'a mut impl DevicePtrMut<T>,
        stream: &'a CudaStream,
    ) -> Self {
        Self::of(T::TYPE, shape.into(), slice, stream)
    }

    /// A tensor from bytes, little-endian: for every type, int4 included, which has `ceil(n / 2)` bytes for n elements.
    pub fn from_bytes(
        element: ElementType,
        shape: impl Into<Shape>,
        slice: &'a mut impl DevicePtrMut<u8>,
        stream: &'a CudaStream,
    ) -> Self {
        Self::of(element, shape.into(), slice, stream)
    }

    /// A tensor at an address of a device.
    ///
    /// # Safety
    /// Whenever the stream of a call (or of a graph that a call was captured into) runs the call, the address is
    /// accessible to the device for writes of a row-major tensor of this type and shape (any address where it has no
    /// elements), as `cache` or `scale` also for reads. Until the call is done nothing else reads or writes an output,
    /// or the slots of a cache's layer that the call writes, or writes those that it reads.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, address: u64) -> Self {
        let data = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: nothing but a call on a device, through its stream, touches the memory, which is then accessible to
        // the device and touched by nobody else: see `# Safety`.
        Self { tensor: unsafe { TensorMut::from_raw_parts(element, shape, data) }, guard: None }
    }

    fn of<T>(element: ElementType, shape: Shape, slice: &'a mut impl DevicePtrMut<T>, stream: &'a CudaStream) -> Self {
        let defect = length_defect(element, &shape, slice.num_bytes());
        let of_stream = slice.stream().clone();
        let (address, end) = slice.device_ptr_mut(stream);
        // SAFETY: the slice is borrowed mutably for 'a; a call uses it through its stream only, in which every later
        // user of the slice waits for it. A tensor of other bytes than the slice gets a defect, with which no call is
        // made.
        let mut own = unsafe { Self::from_raw_parts(element, shape, address) };
        own.tensor.0.defect = defect;
        Self { guard: Some(Box::new(StreamGuard::new(&of_stream, stream, end))), ..own }
    }

    pub(super) fn address(&self) -> u64 {
        self.tensor.0.data.addr() as u64
    }

    /// Checks that a call on `stream` may use the tensor called `name`.
    pub(super) fn check_stream(&self, name: &'static str, stream: &CudaStream) -> Result<(), Error> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.check(name, stream))
    }
}

/// What is wrong with a slice of so many bytes as a tensor. (A shape whose size overflows has an error of its own.)
fn length_defect(element: ElementType, shape: &Shape, bytes: usize) -> Option<Defect> {
    let fits = shape::bytes(element, shape) == Some(bytes);
    (!fits).then_some(Defect::SliceLength(bytes))
}

/// The use of a cudarc slice by a stream. Its start has made the stream wait for earlier uses on other streams; it ends
/// when this is dropped, which must be after the call is enqueued.
#[derive(Debug)]
pub(crate) struct StreamGuard<'a> {
    stream: &'a CudaStream,
    same_context: bool,
    _end: SyncOnDrop<'a>,
}

impl<'a> StreamGuard<'a> {
    fn new(of_slice: &CudaStream, stream: &'a CudaStream, end: SyncOnDrop<'a>) -> Self {
        let same_context = of_slice.context().cu_ctx() == stream.context().cu_ctx();
        Self { stream, same_context, _end: end }
    }

    pub(super) fn check(&self, input: &'static str, stream: &CudaStream) -> Result<(), Error> {
        if !self.same_context {
            return Err(Error::OtherContext { input });
        }
        if self.stream != stream {
            return Err(Error::OtherStream { input });
        }
        Ok(())
    }
}

/// The cudarc slices among a call's tensors, with their names. They are in use until this is dropped.
pub(crate) type StreamGuards<'a> = Vec<(&'static str, Box<StreamGuard<'a>>)>;

impl<'a> From<DeviceRef<'a>> for Operand<'a> {
    fn from(DeviceRef { tensor, guard }: DeviceRef<'a>) -> Self {
        Self { on_device: true, guard, ..tensor.into() }
    }
}

impl<'a> From<DeviceMut<'a>> for Operand<'a> {
    fn from(DeviceMut { tensor, guard }: DeviceMut<'a>) -> Self {
        Self { on_device: true, guard, ..tensor.into() }
    }
}

impl Operand<'_> {
    /// The address on the device.
    pub(crate) fn address(&self) -> u64 {
        self.tensor.data.addr() as u64
    }
}
