//! `HostMemory`: numpy arrays whose rows a manager moves.

use std::sync::Mutex;

use kvcache_manager as core;
use kvcache_manager::op::TensorMut;
use kvcache_manager::schema::ElementType;
use kvcache_manager::{CacheSettings, CacheSpec, Mode};
use numpy::npyffi::flags::{NPY_ARRAY_ALIGNED, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyTuple;

use crate::arguments::type_error;
use crate::refusal::{Refusal, Result};
use crate::spec;
use crate::threads::Threads;

/// The arrays of a cache and of its scales, which a manager and the operator write in place.
///
/// `cache` has the shape `spec.cache_shape` and the type `spec.cache_dtype`: float32, float16 or int8; int4 is an array
/// of uint8 with two elements in a byte, the first in the low nibble, whose last axis is head_dim / 2. `scale` has the
/// shape `spec.scale_shape` and the type `spec.scale_dtype`; it is None if the cache is not quantized, and if its
/// scales are static. Both are C-contiguous and writable. They are kept, never copied, and looked at again at each use.
///
/// While a manager moves rows (in `begin_step`, `update`, `save` and `load`) other Python threads run. They may read
/// and write the arrays then only where the call does not: which slots a step, an edit or a session has, the manager
/// knows. Two uses of one HostMemory wait for each other; two HostMemory on the same array do not.
///
/// Raises ManagerError, whose details are name, expected and got, of kind tensor_type, tensor_shape, tensor_read_only,
/// tensor_not_contiguous, scale_missing or scale_unexpected; TypeError for anything but a numpy array.
#[pyclass(frozen, module = "kvcache_ops.manager")]
#[derive(Debug)]
pub struct HostMemory {
    spec: CacheSpec,
    cache: Operand,
    scale: Option<Operand>,
    /// Held while the arrays are used.
    busy: Mutex<()>,
}

/// An array and what it has to be.
#[derive(Debug)]
struct Operand {
    name: &'static str,
    array: Py<PyUntypedArray>,
    element: ElementType,
    /// In elements of numpy: of packed int4, bytes.
    shape: [usize; 5],
    /// `element` as numpy has it.
    numpy_type: Py<PyArrayDescr>,
}

impl Operand {
    fn new(name: &'static str, array: &Bound<'_, PyAny>, element: ElementType, shape: [usize; 5]) -> Result<Self> {
        let py = array.py();
        let untyped = array.cast::<PyUntypedArray>().map_err(|_| type_error(name, "a numpy array", array))?;
        let [outer @ .., head_dim] = shape;
        let (numpy_type, last) = match element {
            ElementType::Int4 => ("uint8", head_dim / 2),
            ElementType::Float8E4M3Fn => ("float8_e4m3fn", head_dim),
            _ => (element.name(), head_dim),
        };
        let shape = [outer[0], outer[1], outer[2], outer[3], last];
        let numpy_type = PyArrayDescr::new(py, numpy_type)?.unbind();
        let operand = Self { name, array: untyped.clone().unbind(), element, shape, numpy_type };
        operand.address(py)?;
        Ok(operand)
    }

    /// Checks the array, which may have changed, and returns the address of its elements.
    fn address(&self, py: Python<'_>) -> Result<*mut u8> {
        let (array, expected_type) = (self.array.bind(py), self.numpy_type.bind(py));
        if !array.dtype().is_equiv_to(expected_type) {
            let (expected, got) = (expected_type.to_string(), array.dtype().to_string());
            let what = format!("expected an array of {expected} for {}, got one of {got}", self.element);
            return Err(refused(self.name, "tensor_type", &what, expected, got));
        }
        if array.shape() != self.shape {
            let what = format!("expected shape {:?}, got {:?}", self.shape, array.shape());
            let (expected, got) = (PyTuple::new(py, self.shape)?, PyTuple::new(py, array.shape())?);
            return Err(refused(self.name, "tensor_shape", &what, expected.unbind(), got.unbind()));
        }
        // SAFETY: `self` keeps the array that the pointer is from.
        let (flags, address) = unsafe {
            let array = &*array.as_array_ptr();
            (array.fields.flags, array.fields.data)
        };
        if flags & NPY_ARRAY_C_CONTIGUOUS == 0 || flags & NPY_ARRAY_ALIGNED == 0 {
            let strides = array.strides();
            let what = format!(
                "expected an aligned C-contiguous array, as np.zeros and np.ascontiguousarray make them, got strides \
                 {strides:?}"
            );
            let got = format!("strides {strides:?}");
            return Err(refused(self.name, "tensor_not_contiguous", &what, "C-contiguous", &got));
        }
        if flags & NPY_ARRAY_WRITEABLE == 0 {
            return Err(refused(self.name, "tensor_read_only", "the array is read-only", "writable", "read-only"));
        }
        Ok(address.cast())
    }
}

/// The refusal of an array that is not as expected.
fn refused<T>(name: &'static str, kind: &'static str, what: &str, expected: T, got: T) -> Refusal
where
    T: for<'py> IntoPyObject<'py>,
{
    let refusal = Refusal::manager(kind, format!("{name}: {what}"));
    refusal.with("name", name).with("expected", expected).with("got", got)
}

/// The arrays of a [`HostMemory`], checked for one use.
#[derive(Debug)]
pub struct Arrays<'m> {
    memory: &'m HostMemory,
    cache: *mut u8,
    scale: *mut u8,
}

impl HostMemory {
    /// Checks the arrays for a use by a manager of this specification. Runs Python code: no lock may be held.
    pub fn arrays<'m>(&'m self, py: Python<'_>, spec: &CacheSpec) -> Result<Arrays<'m>> {
        if self.spec.rows() != spec.rows() {
            let (expected, got) = (spec.cache_shape(), self.spec.cache_shape());
            let (cache_type, of) = (spec.cache_type, self.spec.cache_type);
            let message = format!("the memory is of a cache {got:?} of {of}, expected {expected:?} of {cache_type}");
            let (expected, got) = (PyTuple::new(py, expected)?.unbind(), PyTuple::new(py, got)?.unbind());
            return Err(Refusal::manager("memory_spec", message).with("expected", expected).with("got", got));
        }
        let scale = self.scale.as_ref().map_or(Ok(std::ptr::null_mut()), |scale| scale.address(py))?;
        Ok(Arrays { memory: self, cache: self.cache.address(py)?, scale })
    }
}

impl Arrays<'_> {
    /// Lends `used` the memory, for its use alone, without the GIL: other threads of Python run meanwhile.
    pub fn using<R: Send>(
        self,
        py: Python<'_>,
        used: impl FnOnce(&mut core::HostMemory<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        // An earlier panic has left no more behind than unfinished rows.
        let _busy = self.memory.busy.lock_py_attached(py).unwrap_or_else(std::sync::PoisonError::into_inner);
        let spec = &self.memory.spec;
        // SAFETY: the array is C-contiguous, aligned, writable and of this type and size, checked by `Operand::address`
        // for this use; `memory` keeps it, and no other use of `memory` goes on. What else touches it is up to the
        // Python program, as documented.
        let tensor = |address, element, shape| unsafe { TensorMut::from_raw_parts(element, shape, address) };
        let cache = tensor(self.cache, spec.cache_type, spec.cache_shape());
        let scale = spec.quant.zip(spec.scale_shape()).map(|((_, t3), shape)| tensor(self.scale, t3, shape));
        let mut memory = core::HostMemory::new(spec, cache, scale, &Threads)?;
        py.detach(|| used(&mut memory))
    }
}

#[pymethods]
impl HostMemory {
    #[new]
    #[pyo3(signature = (spec, cache, scale=None))]
    fn new(spec: &Bound<'_, PyAny>, cache: &Bound<'_, PyAny>, scale: Option<&Bound<'_, PyAny>>) -> Result<Self> {
        // The memory of a cache is the same in every mode.
        let spec = CacheSettings { mode: Mode::Runs, ..spec::settings(spec)? }.check()?;
        let cache = Operand::new("cache", cache, spec.cache_type, spec.cache_shape())?;
        let scale = match (scale, spec.quant, spec.scale_shape()) {
            (Some(scale), Some((_, scale_type)), Some(shape)) => Some(Operand::new("scale", scale, scale_type, shape)?),
            (None, None, _) => None,
            (None, Some((_, expected)), _) => {
                let what = format!("expected an array of {expected}, got None");
                return Err(refused("scale", "scale_missing", &what, Some(expected.name()), None));
            }
            (Some(_), _, _) => {
                let what = "expected None for a cache that has no scales by slot, got an array";
                return Err(refused("scale", "scale_unexpected", what, None, Some("an array")));
            }
        };
        Ok(Self { spec, cache, scale, busy: Mutex::new(()) })
    }

    /// The array of the cache.
    #[getter]
    fn cache(&self, py: Python<'_>) -> Py<PyUntypedArray> {
        self.cache.array.clone_ref(py)
    }

    /// The array of the scales, or None.
    #[getter]
    fn scale(&self, py: Python<'_>) -> Option<Py<PyUntypedArray>> {
        self.scale.as_ref().map(|scale| scale.array.clone_ref(py))
    }
}
