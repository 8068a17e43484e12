//! Borrowed tensors in device memory.

use kvcache_schema::{ElementType, shape};

use super::device_trait::Device;
use super::error::Error;
use crate::tensor::{Defect, Shape, TensorMut, TensorRef};

/// A tensor in device memory, to be read.
#[derive(Debug)]
pub struct DeviceRef<'a, D: Device> {
    /// The tensor; its address is a device address, which the host never dereferences.
    pub(crate) tensor: TensorRef<'a>,
    pub(crate) usage: Option<D::Usage<'a>>,
}

/// A tensor in device memory, to be written.
#[derive(Debug)]
pub struct DeviceMut<'a, D: Device> {
    /// The tensor; its address is a device address, which the host never dereferences.
    pub(crate) tensor: TensorMut<'a>,
    pub(crate) usage: Option<D::Usage<'a>>,
}

impl<'a, D: Device> DeviceRef<'a, D> {
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

impl<'a, D: Device> DeviceMut<'a, D> {
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

    /// Checks that a call on `stream` may use the tensor called `name`.
    pub(super) fn check_use(&self, name: &'static str, stream: &D::Stream) -> Result<(), Error<D>> {
        self.usage.as_ref().map_or(Ok(()), |usage| D::check_usage(usage, name, stream))
    }
}

macro_rules! of_slice {
    ($($tensor:ident),*) => { $(
        impl<'a, D: Device> $tensor<'a, D> {
            /// The tensor in a slice of `bytes` bytes of the device's own library, which `usage` keeps for the call's stream. A
            /// call is refused if the tensor has other bytes.
            ///
            /// # Safety
            /// The address is the slice's, and while `usage` lives, what is put into its stream may read the slice, and write that of a
            /// [`DeviceMut`].
            pub unsafe fn of_slice(
                element: ElementType,
                shape: impl Into<Shape>,
                (address, bytes): (u64, usize),
                usage: D::Usage<'a>,
            ) -> Self {
                // SAFETY: a tensor of other bytes than the slice gets a defect, with which no call is made; the stream may use
                // the slice: see `# Safety`.
                let mut own = unsafe { Self::from_raw_parts(element, shape, address) };
                own.tensor.defect = defect(element, &own.tensor.shape, bytes);
                own.usage = Some(usage);
                own
            }

            pub(super) fn address(&self) -> u64 {
                self.tensor.data.addr() as u64
            }
        }
    )* };
}

of_slice!(DeviceRef, DeviceMut);

/// What is wrong with a slice of so many bytes as a tensor. (A shape whose size overflows has an error of its own.)
fn defect(element: ElementType, shape: &Shape, bytes: usize) -> Option<Defect> {
    let fits = shape::bytes(element, shape) == Some(bytes);
    (!fits).then_some(Defect::SliceLength(bytes))
}
