//! Memory of other libraries' tensors through versioned DLPack, which tells what must not be written.

use kvcache_op::dlpack::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned, Described, DlpackFlags, described,
    element_of, on_host,
};
use kvcache_op::{ElementType, Shape};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::refusal::{Refusal, Result};

/// An argument's description of its memory.
pub struct Given<'py> {
    /// The owner of the memory: the array, or the capsule of its export.
    pub owner: Bound<'py, PyAny>,
    /// The type of the elements, or the name of a type that the operators do not have.
    pub element: Result<ElementType, String>,
    pub shape: Shape,
    pub address: *mut u8,
    pub contiguous: bool,
    pub read_only: bool,
    pub copied: bool,
}

/// The type of a producer's elements, or its name. int4 is no type of an operator here: producers do not agree on its
/// bytes.
fn element(dtype: DLDataType) -> Result<ElementType, String> {
    if let Some(element) =
        element_of("", dtype).ok().filter(|element| !matches!(element, ElementType::Int4 | ElementType::UInt8))
    {
        return Ok(element);
    }
    let kind = match dtype.code {
        DLDataTypeCode::INT => "int",
        DLDataTypeCode::UINT => "uint",
        DLDataTypeCode::FLOAT => "float",
        DLDataTypeCode::BFLOAT => "bfloat",
        DLDataTypeCode::COMPLEX => "complex",
        DLDataTypeCode::BOOL => "bool",
        code => return Err(format!("DLPack type code {} of {} bits", code.0, dtype.bits)),
    };
    let lanes = if dtype.lanes == 1 { String::new() } else { format!("x{}", dtype.lanes) };
    Err(format!("{kind}{}{lanes}", dtype.bits))
}

/// Borrows the memory of `producer`, the argument called `name`.
pub fn borrow<'py>(name: &'static str, producer: &Bound<'py, PyAny>) -> Result<Given<'py>> {
    let py = producer.py();
    let class = producer.get_type().name()?.to_string();
    let failed = |error: PyErr| {
        if !error.is_instance_of::<PyException>(py) {
            return error; // KeyboardInterrupt and the like
        }
        let refused: PyErr =
            Refusal::new("not_borrowed", format!("{name}: the memory of the {class} cannot be borrowed: {error}"))
                .into();
        refused.set_cause(py, Some(error));
        refused
    };
    let (device_type, device_id) =
        producer.call_method0("__dlpack_device__").and_then(|device| device.extract()).map_err(failed)?;
    on_host(name, DLDevice { device_type: DLDeviceType(device_type), device_id })?;
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    let capsule = producer.call_method("__dlpack__", (), Some(&arguments)).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) { unversioned(name, &class) } else { failed(error).into() }
    })?;
    let managed = match capsule.cast::<PyCapsule>() {
        Ok(capsule) => capsule.pointer_checked(Some(c"dltensor_versioned")).map_err(|_| unversioned(name, &class))?,
        Err(_) => return Err(unversioned(name, &class)),
    };
    // SAFETY: the pointer of a capsule of this name is a `DLManagedTensorVersioned`, which lives as long as the
    // capsule, since nobody renames it; the place of the version is the same in every version.
    let managed = unsafe { managed.cast::<DLManagedTensorVersioned>().as_ref() };
    if managed.version.major != 1 {
        let (major, minor) = (managed.version.major, managed.version.minor);
        let message = format!("{name}: the {class} exports DLPack {major}.{minor}, expected version 1");
        return Err(Refusal::new("dlpack_version", message));
    }
    let tensor = &managed.dl_tensor;
    // SAFETY: a producer's shape and strides have `ndim` numbers, which live as long as the capsule.
    let Described { shape, data, contiguous } = unsafe { described(name, tensor) }?;
    Ok(Given {
        element: element(tensor.dtype),
        shape,
        address: data,
        contiguous,
        read_only: managed.flags.contains(DlpackFlags::READ_ONLY),
        copied: managed.flags.contains(DlpackFlags::IS_COPIED),
        owner: capsule,
    })
}

fn unversioned(name: &'static str, class: &str) -> Refusal {
    let message = format!(
        "{name}: the {class} does not export versioned DLPack, which tells read-only memory; expected a numpy array or a \
         tensor with __dlpack__(max_version=(1, 0)): pass a numpy array on the same memory"
    );
    Refusal::new("dlpack_version", message)
}
