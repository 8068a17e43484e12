//! A cache's memory for tests: bytes for the manager, tensors for the operator.

use kvcache_golden::Tensor;
use kvcache_manager::op::{Serial, Shape, TensorMut};
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheMemory, CacheSpec, CacheSpecBuilder, HostMemory, MemoryError, Rope, Rotation, RowCopy};
use proptest::prelude::*;

/// Every type of a cache and its scales; without scales the first two are not used.
pub const TYPES: [(QuantBit, usize, Option<ElementType>, ElementType); 7] = {
    use ElementType::{Float16, Float32, Int4, Int8};
    [
        (QuantBit::Eight, 0, None, Float32),
        (QuantBit::Eight, 0, None, Float16),
        (QuantBit::Eight, 0, None, Int8),
        (QuantBit::Eight, 2, Some(Float32), Int8),
        (QuantBit::Eight, 4, Some(Float16), Int8),
        (QuantBit::Four, 4, Some(Float32), Int4),
        (QuantBit::Four, 2, Some(Float16), Int4),
    ]
};

/// Sets the types with this index in [`TYPES`].
pub fn with_types(builder: CacheSpecBuilder, types: usize) -> CacheSpecBuilder {
    let (bit, group, scale_type, cache_type) = TYPES[types];
    match scale_type {
        Some(scale_type) => builder.quantized(bit, group, scale_type),
        None => builder.cache_type(cache_type),
    }
}

/// Any layout.
pub fn layouts() -> impl Strategy<Value = CacheLayout> {
    proptest::sample::select(CacheLayout::ALL.to_vec())
}

/// What a memory does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// It makes so many copies, then fails.
    pub fails_after: Option<usize>,
    /// It makes none, and says nothing: as if there were no copy-on-write.
    pub no_copies: bool,
    /// It copies `cache` alone.
    pub no_scales: bool,
}

/// The tensors of a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    pub spec: CacheSpec,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
    pub faults: Faults,
}

impl Memory {
    pub fn new(spec: &CacheSpec, types: usize) -> Self {
        let (_, _, scale_type, cache_type) = TYPES[types];
        let cache = Tensor::zeros(cache_type, spec.cache_shape().to_vec()).unwrap();
        let scale = scale_type.map(|t3| Tensor::zeros(t3, spec.scale_shape().unwrap().to_vec()).unwrap());
        Self { spec: spec.clone(), cache, scale, faults: Faults::default() }
    }

    /// Rows in canonical order.
    pub fn read(&self, slots: &[usize]) -> Vec<u8> {
        let mut rows = vec![0; slots.len() * self.spec.bytes_per_token()];
        self.read_rows(slots, &mut rows).unwrap();
        rows
    }

    pub fn write(&mut self, slots: &[usize], rows: &[u8]) {
        self.write_rows(slots, rows).unwrap();
    }

    /// The memory without faults.
    fn host(&mut self) -> HostMemory<'_> {
        let Self { spec, cache, scale, .. } = self;
        HostMemory::new(spec, write(cache), scale.as_mut().map(write), &Serial).unwrap()
    }

    /// `cache` and `scale` as the operator takes them.
    pub fn tensors(&mut self) -> (TensorMut<'_>, Option<TensorMut<'_>>) {
        (write(&mut self.cache), self.scale.as_mut().map(write))
    }
}

impl CacheMemory for Memory {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        let Faults { fails_after, no_copies, no_scales } = self.faults;
        let made = if no_copies { &[] } else { &copies[..fails_after.unwrap_or(copies.len()).min(copies.len())] };
        let before = self.scale.as_ref().map_or(&[][..], Tensor::bytes).to_vec();
        self.host().copy_rows(made)?;
        if no_scales {
            self.scale.as_mut().map_or(&mut [][..], Tensor::bytes_mut).copy_from_slice(&before);
        }
        match fails_after {
            Some(_) => Err("injected".into()),
            None => Ok(()),
        }
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError> {
        self.host().rotate_keys(rotations, rope)
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        let scale = self.scale.as_ref().map_or(&[][..], Tensor::bytes);
        Ok(self.spec.rows().read(self.cache.bytes(), scale, slots, rows)?)
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        self.host().write_rows(slots, rows)
    }
}

/// A golden tensor as the operator writes it.
pub fn write(tensor: &mut Tensor) -> TensorMut<'_> {
    let shape: Shape = tensor.shape().into();
    // SAFETY: the tensor owns aligned bytes of its type and shape, borrowed mutably as long as the result lives.
    unsafe { TensorMut::from_raw_parts(tensor.element(), shape, tensor.bytes_mut().as_mut_ptr()) }
}
