//! Borrowed tensors: element type, shape and address.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use kvcache_schema::{ElementType, shape};
use ndarray::{ArrayBase, Data, DataMut, Dimension};
use smallvec::SmallVec;

/// A tensor's shape, outermost axis first; allocates nothing up to rank 5, which a cache has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape(SmallVec<[usize; 5]>);

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    #[inline]
    fn from(shape: &[usize]) -> Self {
        Self(SmallVec::from_slice(shape))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(shape: [usize; N]) -> Self {
        Self(SmallVec::from_slice(&shape))
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(shape: I) -> Self {
        Self(shape.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// The Rust type of a tensor's elements. int4 and float8e4m3fn have none: see [`TensorMut::int4`]
/// and [`TensorMut::float8e4m3fn`].
pub trait Element: Copy + sealed::Sealed {
    /// The type's name in the operator.
    const TYPE: ElementType;
}

mod sealed {
    pub trait Sealed {}
}

/// Maps Rust types to element types.
macro_rules! element {
    ($($element:ident $rust:ty),*) => {
        $(
            impl sealed::Sealed for $rust {}

            impl Element for $rust {
                const TYPE: ElementType = ElementType::$element;
            }
        )*
    };
}

element!(Float32 f32, Float16 half::f16, BFloat16 half::bf16, Int8 i8, Int64 i64, UInt8 u8);

/// What is wrong with a tensor as it was made; reported by the checks, which know its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// It is not contiguous in row-major order.
    NotContiguous,
    /// It has that many bytes of packed elements, other than its shape needs.
    PackedLength(usize),
    #[cfg(feature = "cuda")]
    /// It is a device slice of that many bytes, other than its shape needs.
    SliceLength(usize),
}

/// A tensor to be read.
///
/// Converts from references to ndarray arrays and views, to slices, arrays and `Vec`s of `i64` (rank 1) and to one
/// `i64` (rank 0). For the memory of another runtime: [`TensorRef::from_raw_parts`].
#[derive(Debug, Clone)]
pub struct TensorRef<'a> {
    pub(crate) element: ElementType,
    pub(crate) shape: Shape,
    pub(crate) data: *const u8,
    pub(crate) defect: Option<Defect>,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor to be written.
///
/// Converts from mutable references to ndarray arrays and views; for int4: [`TensorMut::int4`]. For the memory of
/// another runtime: [`TensorMut::from_raw_parts`].
#[derive(Debug)]
pub struct TensorMut<'a>(
    /// The tensor, whose address comes from a mutable pointer.
    pub(crate) TensorRef<'a>,
);

// SAFETY: stands for a `&[u8]` of plain numbers or, in a TensorMut, for a `&mut [u8]`, which are Send.
unsafe impl Send for TensorRef<'_> {}
// SAFETY: stands for a `&[u8]` of plain numbers or, in a TensorMut, for a `&mut [u8]`, which are Sync; a `&TensorMut`
// only reads them.
unsafe impl Sync for TensorRef<'_> {}

impl TensorRef<'_> {
    /// A tensor in memory of another runtime.
    ///
    /// # Safety
    /// For the lifetime, `data` is valid for reads of a row-major tensor of this type and shape (of any value where it
    /// has no elements), and nothing writes it.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, data: *const u8) -> Self {
        Self::new(element, shape.into(), data, None)
    }

    fn new(element: ElementType, shape: Shape, data: *const u8, defect: Option<Defect>) -> Self {
        Self { element, shape, data, defect, memory: PhantomData }
    }
}

impl<'a> TensorMut<'a> {
    /// A tensor in memory of another runtime.
    ///
    /// # Safety
    /// For the lifetime, `data` is valid for writes of a row-major tensor of this type and shape (of any value where it
    /// has no elements); as `cache` or `scale`, or where [`bytes`](Self::bytes) or [`bytes_mut`](Self::bytes_mut) is
    /// called, also for reads of initialized memory. While a call uses it, nothing else reads or writes an output, or
    /// the slots of a cache's layer that the call writes, or writes those that it reads. While its bytes are borrowed,
    /// nothing else writes them, or, from `bytes_mut`, accesses them.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, data: *mut u8) -> Self {
        Self(TensorRef::new(element, shape.into(), data, None))
    }

    /// An int4 tensor of this logical shape: `ceil(n / 2)` bytes for n elements, element 2i in the low nibble of byte
    /// i.
    pub fn int4(shape: impl Into<Shape>, bytes: &'a mut [u8]) -> Self {
        Self::codes(ElementType::Int4, shape.into(), bytes)
    }

    /// A float8e4m3fn tensor of this shape: a byte for each element.
    pub fn float8e4m3fn(shape: impl Into<Shape>, bytes: &'a mut [u8]) -> Self {
        Self::codes(ElementType::Float8E4M3Fn, shape.into(), bytes)
    }

    fn codes(element: ElementType, shape: Shape, bytes: &'a mut [u8]) -> Self {
        let fits = shape::bytes(element, &shape) == Some(bytes.len());
        let defect = (!fits).then_some(Defect::PackedLength(bytes.len()));
        Self(TensorRef::new(element, shape, bytes.as_mut_ptr(), defect))
    }

    /// The type of its elements.
    pub fn element(&self) -> ElementType {
        self.0.element
    }

    /// Its shape, in elements.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The tensor for a shorter lifetime, to be given to one call after another.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut(self.0.clone())
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for TensorRef<'a> {
    fn from(array: &'a ArrayBase<S, D>) -> Self {
        let defect = (!array.is_standard_layout()).then_some(Defect::NotContiguous);
        Self::new(T::TYPE, array.shape().into(), array.as_ptr().cast(), defect)
    }
}

impl<'a> From<&'a [i64]> for TensorRef<'a> {
    fn from(indices: &'a [i64]) -> Self {
        Self::new(ElementType::Int64, [indices.len()].into(), indices.as_ptr().cast(), None)
    }
}

impl<'a, const N: usize> From<&'a [i64; N]> for TensorRef<'a> {
    fn from(indices: &'a [i64; N]) -> Self {
        indices.as_slice().into()
    }
}

impl<'a> From<&'a Vec<i64>> for TensorRef<'a> {
    fn from(indices: &'a Vec<i64>) -> Self {
        indices.as_slice().into()
    }
}

impl<'a> From<&'a i64> for TensorRef<'a> {
    fn from(scalar: &'a i64) -> Self {
        Self::new(ElementType::Int64, Shape::default(), std::ptr::from_ref(scalar).cast(), None)
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>, D: Dimension> From<&'a mut ArrayBase<S, D>> for TensorMut<'a> {
    fn from(array: &'a mut ArrayBase<S, D>) -> Self {
        let defect = (!array.is_standard_layout()).then_some(Defect::NotContiguous);
        Self(TensorRef::new(T::TYPE, array.shape().into(), array.as_mut_ptr().cast(), defect))
    }
}
