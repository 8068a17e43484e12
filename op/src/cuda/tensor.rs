//! Borrowed tensors in device memory.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use kvcache_kernels::cuda::cudarc;
use kvcache_schema::{ElementType, shape};

use super::error::Error;
use crate::tensor::{Defect, Element, Shape, TensorMut, TensorRef};

/// A tensor in device memory, to be read.
#[derive(Debug)]
pub struct DeviceRef<'a> {
    /// The tensor; its address is a device address, which the host never dereferences.
    pub(crate) tensor: TensorRef<'a>,
    pub(crate) usage: Option<Usage<'a>>,
}

/// A tensor in device memory, to be written.
#[derive(Debug)]
pub struct DeviceMut<'a> {
    /// As in [`DeviceRef`].
    pub(crate) tensor: TensorMut<'a>,
    pub(crate) usage: Option<Usage<'a>>,
}

/// The use of a cudarc slice by a stream. Its start has made the stream wait for earlier uses on other streams; it ends
/// when this is dropped, which must be after the call is enqueued.
#[derive(Debug)]
pub(crate) struct Usage<'a> {
    stream: &'a CudaStream,
    same_context: bool,
    _end: SyncOnDrop<'a>,
}

impl<'a> DeviceRef<'a> {
    /// A slice as a row-major tensor of this shape, to be read by a call on this stream.
    pub fn new<T: Element>(shape: impl Into<Shape>, slice: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Self {
        Self::of(T::TYPE, shape.into(), slice, stream)
    }

    /// The same from bytes, little-endian: for every type, int4 included, which has `ceil(n / 2)` bytes for n elements.
    pub fn from_bytes(
        element: ElementType,
        shape: impl Into<Shape>,
        slice: &'a impl DevicePtr<u8>,
        stream: &'a CudaStream,
    ) -> Self {
        Self::of(element, shape.into(), slice, stream)
    }

    fn of<T>(element: ElementType, shape: Shape, slice: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> Self {
        let bytes = slice.num_bytes();
        let same_context = slice.stream().context().cu_ctx() == stream.context().cu_ctx();
        let (address, end) = slice.device_ptr(stream);
        let data = std::ptr::without_provenance(address as usize);
        // SAFETY: the slice is borrowed for 'a, and a slice of other than the tensor's bytes gets a defect; a call
        // reads it through its stream only, in which every later writer of the slice waits for it.
        let mut tensor = unsafe { TensorRef::from_raw_parts(element, shape, data) };
        tensor.defect = defect(element, &tensor.shape, bytes);
        Self { tensor, usage: Some(Usage { stream, same_context, _end: end }) }
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
        Self { tensor: unsafe { TensorRef::from_raw_parts(element, shape, data) }, usage: None }
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

    /// The same from bytes, little-endian: for every type, int4 included, which has `ceil(n / 2)` bytes for n elements.
    pub fn from_bytes(
        element: ElementType,
        shape: impl Into<Shape>,
        slice: &'a mut impl DevicePtrMut<u8>,
        stream: &'a CudaStream,
    ) -> Self {
        Self::of(element, shape.into(), slice, stream)
    }

    fn of<T>(element: ElementType, shape: Shape, slice: &'a mut impl DevicePtrMut<T>, stream: &'a CudaStream) -> Self {
        let bytes = slice.num_bytes();
        let same_context = slice.stream().context().cu_ctx() == stream.context().cu_ctx();
        let (address, end) = slice.device_ptr_mut(stream);
        let data = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: the slice is borrowed mutably for 'a, and a slice of other than the tensor's bytes gets a defect; a
        // call writes it through its stream only, in which every later user of the slice waits for it.
        let mut tensor = unsafe { TensorMut::from_raw_parts(element, shape, data) };
        tensor.defect = defect(element, &tensor.shape, bytes);
        Self { tensor, usage: Some(Usage { stream, same_context, _end: end }) }
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
        Self { tensor: unsafe { TensorMut::from_raw_parts(element, shape, data) }, usage: None }
    }
}

impl Usage<'_> {
    /// Checks that a call on `stream` may use the tensor called `input`.
    pub(crate) fn check(&self, input: &'static str, stream: &CudaStream) -> Result<(), Error> {
        if !self.same_context {
            return Err(Error::OtherContext { input });
        }
        if self.stream != stream {
            return Err(Error::OtherStream { input });
        }
        Ok(())
    }
}

/// What is wrong with a slice of so many bytes as a tensor. (A shape whose size overflows has an error of its own.)
fn defect(element: ElementType, shape: &Shape, bytes: usize) -> Option<Defect> {
    let fits = shape::bytes(element, shape) == Some(bytes);
    (!fits).then_some(Defect::SliceLength(bytes))
}
