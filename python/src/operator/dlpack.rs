//! Memory of other libraries' tensors through versioned DLPack, which tells what must not be written.

use std::ffi::c_void;

use kvcache_op::{ElementType, Shape};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::refused::Refused;

/// `DLDevice` of dlpack.h.
#[repr(C)]
struct Device {
    device_type: i32,
    device_id: i32,
}

/// `DLDataType` of dlpack.h.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor` of dlpack.h.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned` of dlpack.h, version 1.
#[repr(C)]
struct Managed {
    major: u32,
    minor: u32,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: Tensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;
/// `kDLCPU` and `kDLCUDAHost`: memory that the CPU reads and writes.
const ON_HOST: [i32; 2] = [1, 3];
/// Names of the other devices that are met most.
const DEVICES: [(i32, &str); 4] = [(2, "cuda"), (8, "metal"), (10, "rocm"), (13, "cuda managed")];

/// What a producer says of its memory, which the capsule keeps.
pub struct Borrowed<'py> {
    pub capsule: Bound<'py, PyCapsule>,
    pub dtype: Dtype,
    pub shape: Shape,
    pub address: *mut u8,
    pub contiguous: bool,
    pub read_only: bool,
    pub copied: bool,
}

/// A type of elements, by its DLPack code and width.
pub struct Dtype {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl Dtype {
    /// The same in the operator, if it has it. int4 is none of them: producers do not agree on its bytes.
    pub fn element(&self) -> Option<ElementType> {
        match (self.code, self.bits, self.lanes) {
            (2, 32, 1) => Some(ElementType::Float32),
            (2, 16, 1) => Some(ElementType::Float16),
            (0, 8, 1) => Some(ElementType::Int8),
            (0, 64, 1) => Some(ElementType::Int64),
            _ => None,
        }
    }

    /// Whether it is uint8.
    pub fn is_byte(&self) -> bool {
        (self.code, self.bits, self.lanes) == (1, 8, 1)
    }

    /// Its name, as far as it has one.
    pub fn name(&self) -> String {
        let kind = match self.code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            5 => "complex",
            6 => "bool",
            code => return format!("DLPack type code {code} of {} bits", self.bits),
        };
        format!("{kind}{}", self.bits)
    }
}

/// Borrows the memory of `producer`, the argument called `name`.
///
/// # Errors
/// `KvCacheError` for memory that the CPU cannot reach, and for what does not export versioned DLPack.
pub fn borrow<'py>(name: &'static str, producer: &Bound<'py, PyAny>) -> PyResult<Borrowed<'py>> {
    let py = producer.py();
    let class = producer.get_type().name()?.to_string();
    let failed = |error: PyErr| {
        if !error.is_instance_of::<PyException>(py) {
            return error; // KeyboardInterrupt and the like
        }
        let refused: PyErr =
            Refused::new("not_borrowed", format!("{name}: the memory of the {class} cannot be borrowed: {error}"))
                .into();
        refused.set_cause(py, Some(error));
        refused
    };
    let (device_type, device_id): (i32, i32) =
        producer.call_method0("__dlpack_device__").and_then(|device| device.extract()).map_err(failed)?;
    if !ON_HOST.contains(&device_type) {
        let device = DEVICES.iter().find(|(code, _)| *code == device_type);
        let device = device.map_or_else(|| format!("DLPack type {device_type}"), |(_, device)| (*device).to_owned());
        let message = format!("{name} is on device {device}:{device_id}, expected memory of the CPU");
        return Err(Refused::new("device", message).into());
    }
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    let capsule = producer.call_method("__dlpack__", (), Some(&arguments)).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) { unversioned(name, &class) } else { failed(error) }
    })?;
    let managed = match capsule.cast::<PyCapsule>() {
        Ok(capsule) => capsule.pointer_checked(Some(c"dltensor_versioned")).map_err(|_| unversioned(name, &class))?,
        Err(_) => return Err(unversioned(name, &class)),
    };
    // SAFETY: the pointer of a capsule of this name is a `DLManagedTensorVersioned`, which lives as long as the capsule,
    // since nobody renames it; the place of the version is the same in every version.
    let managed = unsafe { managed.cast::<Managed>().as_ref() };
    if managed.major != 1 {
        let (major, minor) = (managed.major, managed.minor);
        let message = format!("{name}: the {class} exports DLPack {major}.{minor}, expected version 1");
        return Err(Refused::new("dlpack_version", message).into());
    }
    let tensor = &managed.tensor;
    let rank = usize::try_from(tensor.ndim).unwrap_or_default();
    let axes = |numbers: *const i64| match rank {
        0 => &[][..],
        // SAFETY: not null, as the calls below see to, it has `ndim` numbers, which live as long as the capsule.
        rank => unsafe { std::slice::from_raw_parts(numbers, rank) },
    };
    let shape: &[i64] = axes(tensor.shape);
    let contiguous = tensor.strides.is_null() || is_contiguous(shape, axes(tensor.strides));
    let &Tensor { data, byte_offset, dtype: DataType { code, bits, lanes }, .. } = tensor;
    Ok(Borrowed {
        dtype: Dtype { code, bits, lanes },
        shape: shape.iter().map(|&axis| axis as usize).collect(),
        address: data.cast::<u8>().wrapping_add(byte_offset as usize),
        contiguous,
        read_only: managed.flags & READ_ONLY != 0,
        copied: managed.flags & IS_COPIED != 0,
        capsule: capsule.cast_into::<PyCapsule>().map_err(PyErr::from)?,
    })
}

fn unversioned(name: &'static str, class: &str) -> PyErr {
    let message = format!(
        "{name}: the {class} does not export versioned DLPack, which tells read-only memory; expected a numpy array or a \
         tensor with __dlpack__(max_version=(1, 0)): pass a numpy array on the same memory"
    );
    Refused::new("dlpack_version", message).into()
}

/// Whether strides, in elements, are those of a row-major tensor. Axes of length 1 are never stepped along.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    for (&axis, &stride) in shape.iter().zip(strides).rev() {
        if axis == 0 {
            return true;
        }
        if axis != 1 && stride != expected {
            // An axis of no elements further out makes an empty tensor, which has nothing to step over.
            return shape.contains(&0);
        }
        expected = expected.saturating_mul(axis);
    }
    true
}
