//! Borrowed tensors of any type, as callers hand them in.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use half::f16;
use kvcache_schema::{ElementType, shape};
use ndarray::{ArrayBase, Data, DataMut, Dimension};
use smallvec::SmallVec;

/// A tensor's shape, outermost axis first; held without allocation up to the rank of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape(SmallVec<[usize; 5]>);

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
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

/// A Rust type that a tensor may have as its elements; int4 has none and is given by [`TensorMut::int4`].
pub trait Element: Copy + sealed::Sealed {
    /// The type's name in the operator.
    const TYPE: ElementType;
}

mod sealed {
    pub trait Sealed {}
}

/// Says that a Rust type is the elements of a tensor type.
macro_rules! element {
    ($($rust:ty => $element:ident),*) => {
        $(
            impl sealed::Sealed for $rust {}

            impl Element for $rust {
                const TYPE: ElementType = ElementType::$element;
            }
        )*
    };
}

element!(f32 => Float32, f16 => Float16, i8 => Int8, i64 => Int64);

/// What a view's maker knows to be wrong with it; said when the tensor's name is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The elements do not lie side by side in row-major order.
    NotContiguous,
    /// So many bytes of packed elements, which are not what the shape asks for.
    PackedLength(usize),
    /// A slice of so many bytes of a device, which are not what the shape asks for.
    #[cfg(feature = "cuda")]
    SliceLength(usize),
}

/// A tensor to be read.
///
/// Made from references to ndarray arrays and views, from a slice or `Vec` of indices (rank 1) or one index (rank 0), or,
/// for another runtime's memory, by [`TensorRef::from_raw_parts`].
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
/// Made from mutable references to ndarray arrays and views, for int4 by [`TensorMut::int4`], or, for another runtime's
/// memory, by [`TensorMut::from_raw_parts`].
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) element: ElementType,
    pub(crate) shape: Shape,
    pub(crate) data: *mut u8,
    pub(crate) defect: Option<Defect>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a TensorRef stands for a `&[u8]` of plain numbers, which is Send.
unsafe impl Send for TensorRef<'_> {}
// SAFETY: a TensorRef stands for a `&[u8]` of plain numbers, which is Sync.
unsafe impl Sync for TensorRef<'_> {}
// SAFETY: a TensorMut stands for a `&mut [u8]` of plain numbers, which is Send.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: a TensorMut stands for a `&mut [u8]` of plain numbers, which is Sync; a `&TensorMut` gives no access to them.
unsafe impl Sync for TensorMut<'_> {}

impl TensorRef<'_> {
    /// A tensor in memory that another runtime owns.
    ///
    /// # Safety
    /// For the lifetime, `data` is valid for reads of a row-major tensor of this type and shape (of any value where it has
    /// no elements), and nobody writes it.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, data: *const u8) -> Self {
        Self { element, shape: shape.into(), data, defect: None, memory: PhantomData }
    }
}

impl<'a> TensorMut<'a> {
    /// A tensor in memory that another runtime owns.
    ///
    /// # Safety
    /// For the lifetime, `data` is valid for writes of a row-major tensor of this type and shape (of any value where it
    /// has no elements); as `cache` or `scale` also for reads of initialized memory. While a call uses it, nobody else
    /// touches an output, or those slots of a cache's layer that the call writes, or writes those that it reads.
    pub unsafe fn from_raw_parts(element: ElementType, shape: impl Into<Shape>, data: *mut u8) -> Self {
        Self { element, shape: shape.into(), data, defect: None, memory: PhantomData }
    }

    /// An int4 tensor of this logical shape: `ceil(n / 2)` bytes for n elements, element 2i in the low nibble of byte i.
    pub fn int4(shape: impl Into<Shape>, bytes: &'a mut [u8]) -> Self {
        let shape = shape.into();
        let fits = shape::bytes(ElementType::Int4, &shape) == Some(bytes.len());
        Self {
            element: ElementType::Int4,
            shape,
            data: bytes.as_mut_ptr(),
            defect: (!fits).then_some(Defect::PackedLength(bytes.len())),
            memory: PhantomData,
        }
    }

    /// The same tensor for a shorter time, so that it can be given to one call after another.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut {
            element: self.element,
            shape: self.shape.clone(),
            data: self.data,
            defect: self.defect,
            memory: PhantomData,
        }
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for TensorRef<'a> {
    fn from(array: &'a ArrayBase<S, D>) -> Self {
        Self {
            element: T::TYPE,
            shape: array.shape().into(),
            data: array.as_ptr().cast(),
            defect: (!array.is_standard_layout()).then_some(Defect::NotContiguous),
            memory: PhantomData,
        }
    }
}

impl<'a> From<&'a [i64]> for TensorRef<'a> {
    fn from(indices: &'a [i64]) -> Self {
        Self {
            element: ElementType::Int64,
            shape: [indices.len()].into(),
            data: indices.as_ptr().cast(),
            defect: None,
            memory: PhantomData,
        }
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
        Self {
            element: ElementType::Int64,
            shape: Shape::default(),
            data: std::ptr::from_ref(scalar).cast(),
            defect: None,
            memory: PhantomData,
        }
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>, D: Dimension> From<&'a mut ArrayBase<S, D>> for TensorMut<'a> {
    fn from(array: &'a mut ArrayBase<S, D>) -> Self {
        Self {
            element: T::TYPE,
            shape: array.shape().into(),
            defect: (!array.is_standard_layout()).then_some(Defect::NotContiguous),
            data: array.as_mut_ptr().cast(),
            memory: PhantomData,
        }
    }
}
