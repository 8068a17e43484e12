//! A cache's memory for tests: bytes for the manager, tensors for the operator, and faults on request; for scripts a
//! tag in each slot.

use std::cell::Cell;

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::write;
use kvcache_manager::op::Serial;
use kvcache_manager::{CacheMemory, CacheSpec, HostMemory, MemoryError, Rope, Rotation, RowCopy};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// This call, counted from 0, writes NaN to what it was to write, and fails.
    pub fails_at: Option<usize>,
    pub panics: bool,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Log {
    pub copies: Vec<RowCopy>,
    pub rotations: Vec<Rotation>,
    /// The slots that rows of a session were written to.
    pub written: Vec<usize>,
    /// The slots that the call that failed was to write.
    pub overwritten: Vec<usize>,
}

/// What a slot of a script's cache has: the number of a row, and its key's rotations since it was written, one after
/// the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub row: u64,
    pub rotations: i64,
}

impl Tag {
    pub fn new(row: u64) -> Self {
        Self { row, rotations: 0 }
    }

    /// A key that is rotated twice has other bits than one that is rotated once by the sum.
    pub fn rotated(self, delta: i64) -> Self {
        Self { rotations: self.rotations.wrapping_mul(31).wrapping_add(delta), ..self }
    }

    pub fn bytes(self) -> [u8; 16] {
        (u128::from(self.row) << 64 | u128::from(self.rotations as u64)).to_ne_bytes()
    }

    fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_ne_bytes(bytes);
        Self { row: (number >> 64) as u64, rotations: number as i64 }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    pub spec: CacheSpec,
    pub cache: Tensor,
    pub scale: Option<Tensor>,
    pub faults: Faults,
    pub calls: Cell<usize>,
    /// Reads for a store, if it is read for one: these never fail.
    pub spilled: Cell<usize>,
    pub spills: bool,
    /// Whether a row is a [`Tag`].
    pub has_tags: bool,
    pub log: Log,
}

impl Memory {
    pub fn new(spec: &CacheSpec) -> Self {
        let cache = Tensor::zeros(spec.cache_type, spec.cache_shape().to_vec()).unwrap();
        let scale = spec.quant.map(|(_, t3)| Tensor::zeros(t3, spec.scale_shape().unwrap().to_vec()).unwrap());
        let (faults, calls, spilled, log) = Default::default();
        Self { spec: spec.clone(), cache, scale, faults, calls, spilled, spills: false, has_tags: false, log }
    }

    pub fn of_tags(spec: &CacheSpec) -> Self {
        Self { has_tags: true, ..Self::new(spec) }
    }

    pub fn tags(&self, slots: &[usize]) -> Vec<Tag> {
        self.read(slots).as_chunks().0.iter().map(|bytes| Tag::from_bytes(*bytes)).collect()
    }

    pub fn read(&self, slots: &[usize]) -> Vec<u8> {
        let mut rows = vec![0; slots.len() * self.spec.bytes_per_token()];
        let scale = self.scale.as_ref().map_or(&[][..], Tensor::bytes);
        self.spec.rows().read(self.cache.bytes(), scale, slots, &mut rows).unwrap();
        rows
    }

    pub fn write(&mut self, slots: &[usize], rows: &[u8]) {
        let scale = self.scale.as_mut().map_or(&mut [][..], Tensor::bytes_mut);
        self.spec.rows().write(self.cache.bytes_mut(), scale, slots, rows).unwrap();
    }

    /// Writes NaN, in every float type, to some slots.
    pub fn write_nan(&mut self, slots: &[usize]) {
        self.write(slots, &vec![0xff; slots.len() * self.spec.bytes_per_token()]);
    }

    fn host(&mut self) -> HostMemory<'_> {
        let scale = self.scale.as_mut().map(write);
        HostMemory::new(&self.spec, write(&mut self.cache), scale, &Serial).unwrap()
    }

    /// Counts a call; whether it is the one that fails.
    fn fails(&self) -> bool {
        let call = self.calls.get();
        self.calls.set(call + 1);
        self.faults.fails_at == Some(call)
    }

    fn fail(&mut self, slots: impl Iterator<Item = usize>) -> Result<(), MemoryError> {
        self.log.overwritten = slots.collect();
        for slot in self.log.overwritten.clone() {
            self.write_nan(&[slot]);
        }
        assert!(!self.faults.panics, "injected");
        Err("injected".into())
    }
}

impl CacheMemory for Memory {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        if self.fails() {
            return self.fail(copies.iter().flat_map(|copy| copy.dst..copy.dst + copy.len));
        }
        self.log.copies.extend_from_slice(copies);
        self.host().copy_rows(copies)
    }

    fn rotate_keys(&mut self, rotations: &[Rotation], rope: &Rope) -> Result<(), MemoryError> {
        if self.fails() {
            return self.fail(rotations.iter().flat_map(|rotation| rotation.slot..rotation.slot + rotation.len));
        }
        self.log.rotations.extend_from_slice(rotations);
        if self.has_tags {
            for &Rotation { slot, len, delta } in rotations {
                let slots: Vec<_> = (slot..slot + len).collect();
                let rotated: Vec<_> =
                    self.tags(&slots).into_iter().flat_map(|tag| tag.rotated(delta).bytes()).collect();
                self.write(&slots, &rotated);
            }
            return Ok(());
        }
        self.host().rotate_keys(rotations, rope)
    }

    fn read_rows(&self, slots: &[usize], rows: &mut [u8]) -> Result<(), MemoryError> {
        if self.spills {
            self.spilled.set(self.spilled.get() + 1);
        } else if self.fails() {
            return Err("injected".into());
        }
        self.clone().host().read_rows(slots, rows)
    }

    fn write_rows(&mut self, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        if self.fails() {
            return self.fail(slots.iter().copied());
        }
        self.log.written.extend_from_slice(slots);
        self.host().write_rows(slots, rows)
    }

    fn write_layer_rows(&mut self, layer: usize, slots: &[usize], rows: &[u8]) -> Result<(), MemoryError> {
        if self.fails() {
            return self.fail(slots.iter().copied());
        }
        self.log.written.extend_from_slice(slots);
        self.host().write_layer_rows(layer, slots, rows)
    }
}
