//! Tensors of a call: numpy arrays, and tensors of other libraries that export versioned DLPack. Never a copy.

use kvcache_op::{ElementType, Error, Shape, TensorMut, TensorRef};
use numpy::npyffi::flags::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::dlpack::{self, Given};
use crate::refusal::{Refusal, Result};

/// A call's use of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The call reads it.
    Read,
    /// The call reads bytes: panels.
    ReadBytes,
    /// The call reads numbers that decide addresses: int64.
    Index,
    /// The call writes it in place.
    Write,
    /// The call writes it in place, and uint8 is packed int4: it is a cache.
    WriteInt4,
}

/// A tensor's memory, of the type and shape that the operator sees, contiguous, and writable if it is written.
pub struct Tensor<'py> {
    /// The caller's argument.
    object: Bound<'py, PyAny>,
    /// The owner of the memory: the array, or the capsule of its export.
    _owner: Bound<'py, PyAny>,
    element: ElementType,
    shape: Shape,
    address: *mut u8,
    /// Copies of index inputs: other threads may change an array after its numbers have been checked.
    indices: Option<Vec<i64>>,
}

impl<'py> Tensor<'py> {
    /// Borrows the memory of an argument. Runs Python code.
    pub fn new(name: &'static str, object: &Bound<'py, PyAny>, access: Access) -> Result<Self> {
        Self::checked(name, object, Given::new(name, object, access)?, access)
    }

    /// Borrows as `new` does, but gives `None` for a tensor without elements, of whatever type and rank.
    pub fn with_elements(name: &'static str, object: &Bound<'py, PyAny>, access: Access) -> Result<Option<Self>> {
        let given = Given::new(name, object, access)?;
        if given.shape.contains(&0) {
            return Ok(None);
        }
        Self::checked(name, object, given, access).map(Some)
    }

    /// The tensor that `object` has given, if it is as `access` needs it.
    fn checked(name: &'static str, object: &Bound<'py, PyAny>, given: Given<'py>, access: Access) -> Result<Self> {
        let element = match given.element {
            Ok(element) => element,
            Err(name) if access == Access::WriteInt4 && name == "uint8" => ElementType::Int4,
            Err(name) if access == Access::ReadBytes && name == "uint8" => ElementType::UInt8,
            Err(got) => {
                let expected = match access {
                    Access::Index => "int64",
                    Access::ReadBytes => "uint8",
                    Access::Read | Access::Write => "float32, float16, int8",
                    Access::WriteInt4 => "float32, float16, int8, uint8 with two elements of int4 in a byte",
                };
                let message = format!("{name} is of type {got}, expected {expected}");
                return Err(Refusal::new("type_mismatch", message));
            }
        };
        let mut shape = given.shape;
        if element == ElementType::Int4 {
            let bytes = shape.last().copied().unwrap_or_default();
            let outer = shape.len().saturating_sub(1);
            shape = shape[..outer].iter().copied().chain((!shape.is_empty()).then_some(bytes * 2)).collect();
        }
        if !given.contiguous {
            let remedy = match access {
                Access::Read | Access::ReadBytes | Access::Index => {
                    "np.ascontiguousarray(x) or x.contiguous() makes such a copy"
                }
                Access::Write | Access::WriteInt4 => {
                    "it is written in place: allocate it so, as CacheSpec.allocate() and np.empty() do; a copy, by \
                     np.ascontiguousarray(x) or x.contiguous(), serves if it is kept instead"
                }
            };
            let message = format!("{}; {remedy}", Error::NotContiguous { input: name, shape });
            return Err(Refusal::new("not_contiguous", message));
        }
        if given.copied {
            let message = format!("{name}: the tensor exports a copy of its memory, expected the memory itself");
            return Err(Refusal::new("copied", message));
        }
        if given.read_only && matches!(access, Access::Write | Access::WriteInt4) {
            let message = format!("{name} is read-only, expected writable memory because it is written in place");
            return Err(Refusal::new("read_only", message));
        }
        let mut tensor =
            Self { object: object.clone(), _owner: given.owner, element, shape, address: given.address, indices: None };
        if element == ElementType::Int64 && access == Access::Index {
            tensor.indices = Some(tensor.copied_indices(name)?);
        }
        Ok(tensor)
    }

    /// The numbers of an int64 tensor.
    fn copied_indices(&self, name: &'static str) -> Result<Vec<i64>> {
        let overflow = || Error::SizeOverflow { input: name, shape: self.shape.clone() };
        let len = kvcache_op::schema::shape::elements(&self.shape).ok_or_else(overflow)?;
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { output: name, shape: self.shape.clone() })?;
        // SAFETY: the memory has `len` numbers, a contiguous tensor of this type and shape, at any address.
        numbers.extend((0..len).map(|i| unsafe { self.address.cast::<i64>().add(i).read_unaligned() }));
        Ok(numbers)
    }

    /// Checks that the tensor is of this type and, where it is given, of this shape, `None` being any length.
    pub fn check(&self, input: &'static str, expected: ElementType, shape: Option<&[Option<usize>]>) -> Result<()> {
        let (got, lengths) = (self.element, shape.unwrap_or_default());
        if got == ElementType::Int4 && got != expected {
            return Err(Refusal::new("type_mismatch", format!("{input} is of type uint8, expected {expected}")));
        }
        if got != expected {
            return Err(Error::TypeMismatch { input, got, expected }.into());
        }
        if shape.is_some() && self.shape.len() != lengths.len() {
            return Err(Error::RankMismatch { input, shape: self.shape.clone(), expected: lengths.len() }.into());
        }
        let reason = "by the CacheSpec";
        for (axis, (&got, expected)) in self.shape.iter().zip(lengths).enumerate() {
            if let Some(expected) = expected.filter(|&expected| expected != got) {
                let shape = self.shape.clone();
                return Err(Error::ShapeMismatch { input, shape, axis, got, expected, reason }.into());
            }
        }
        Ok(())
    }

    /// The caller's argument.
    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.object
    }

    /// The type of its elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Its first byte.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The tensor, to be read.
    pub fn read(&self) -> TensorRef<'_> {
        let data = self.indices.as_ref().map_or(self.address.cast_const(), |indices| indices.as_ptr().cast());
        // SAFETY: the memory has a contiguous tensor of this type and shape, kept by `_owner` or `indices`. What
        // else writes it meanwhile is up to the Python program; indices, which decide addresses, are copies.
        unsafe { TensorRef::from_raw_parts(self.element, self.shape.clone(), data) }
    }

    /// The tensor, to be written: one made for [`Access::Write`] or [`Access::WriteInt4`]; or static scales, which a
    /// call has among what it writes otherwise, and only reads.
    pub fn write(&self) -> TensorMut<'_> {
        // SAFETY: as for `read`; the memory is writable, checked by `new`, unless nothing is written; numpy and DLPack
        // have initialized it, or it is an output. A call gets each of its tensors once, and refuses those that
        // overlap.
        unsafe { TensorMut::from_raw_parts(self.element, self.shape.clone(), self.address) }
    }
}

impl<'py> Given<'py> {
    /// The memory of a numpy array, or of another library's tensor. Runs Python code.
    fn new(name: &'static str, object: &Bound<'py, PyAny>, access: Access) -> Result<Self> {
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            Ok(Self::numpy(array))
        } else if object.hasattr("__dlpack__")? {
            dlpack::borrow(name, object)
        } else {
            let class = object.get_type().name()?;
            let tensor = "a numpy array or a tensor that exports DLPack";
            let expected = match access {
                Access::Index => format!("an int, a list of ints, {tensor}"),
                Access::Read | Access::ReadBytes | Access::Write | Access::WriteInt4 => tensor.to_owned(),
            };
            let message = format!("{name} is a {class}, expected {expected}");
            Err(Refusal::new("not_a_tensor", message))
        }
    }

    fn numpy(array: &Bound<'py, PyUntypedArray>) -> Self {
        let dtype = array.dtype();
        let native = dtype.is_native_byteorder() != Some(false);
        let element = match (dtype.kind(), dtype.itemsize()) {
            (b'f', 4) if native => Ok(ElementType::Float32),
            (b'f', 2) if native => Ok(ElementType::Float16),
            (b'i', 1) => Ok(ElementType::Int8),
            (b'i', 8) if native => Ok(ElementType::Int64),
            (b'u', 1) => Err("uint8".to_owned()),
            // A type that numpy does not have itself, as of the package ml_dtypes: "float8_e4m3fn".
            _ => {
                let name = dtype.to_string();
                let known = ElementType::from_name(&name.replace('_', "")).filter(|_| native && dtype.kind() == b'V');
                known.ok_or(name)
            }
        };
        // SAFETY: the pointer is an array's, which `array` keeps.
        let (flags, address) = unsafe {
            let array = &*array.as_array_ptr();
            (array.fields.flags, array.fields.data)
        };
        Self {
            owner: array.as_any().clone(),
            element,
            shape: array.shape().into(),
            address: address.cast(),
            contiguous: flags & NPY_ARRAY_C_CONTIGUOUS != 0,
            read_only: flags & NPY_ARRAY_WRITEABLE == 0,
            copied: false,
        }
    }
}
