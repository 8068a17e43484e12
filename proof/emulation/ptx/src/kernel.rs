//! The emulated CUDA kernels as a [`Kernel`], to be tested like the others.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use kvcache_kernels::cuda::{Launch, Status};
use kvcache_kernels::{
    Addressing, DeviceAddressing, DeviceProblem, DeviceStores, Geometry, Kernel, Outputs, Problem, Stores, Workers,
};
use kvcache_schema::ElementType;

use crate::arithmetic::Freedom;
use crate::machine::{Counts, Order};
use crate::memory::{Access, DeviceMemory, Memory};
use crate::modules::{Mutant, code, launch};

/// An emulated device: copies a problem's tensors to its memory, launches, and copies back what was written.
///
/// The methods of [`Kernel`] panic where a launch fails, with memory of the problem as it was.
#[derive(Debug, Clone, Copy)]
pub struct EmulatedCuda {
    /// Kernels with a bug, in the place of those as they are.
    pub mutant: Option<&'static Mutant>,
    pub freedom: Freedom,
    /// Whether tensors are aligned for their type only, so that narrow kernels run.
    pub unaligned: bool,
    /// The device's multiprocessors; 0 gives one block the long rounds of large calls.
    pub multiprocessors: u32,
    pub order: Order,
    /// Receives the kernels that have run and, with `counts`, what each has done.
    pub launched: Option<&'static Mutex<BTreeMap<&'static str, Counts>>>,
    pub counts: bool,
}

impl Default for EmulatedCuda {
    fn default() -> Self {
        Self {
            mutant: None,
            freedom: Freedom::default(),
            unaligned: false,
            multiprocessors: 1,
            order: Order::Forward,
            launched: None,
            counts: false,
        }
    }
}

pub(crate) struct Uploaded {
    pub(crate) stores: DeviceStores,
    current: [DeviceMemory; 2],
    pub(crate) cache: DeviceMemory,
    pub(crate) scale: DeviceMemory,
    pub(crate) indices: [DeviceMemory; 3],
    pub(crate) status: DeviceMemory,
}

impl EmulatedCuda {
    /// By how many bytes device memory of a type is off the alignment that wide kernels need.
    fn shift(&self, element: ElementType) -> usize {
        if self.unaligned { element.align() } else { 0 }
    }

    pub(crate) fn upload(&self, stores: &Stores<'_>) -> Uploaded {
        let geometry = *stores.geometry();
        let Geometry { num_heads, head_dim, t1, t2, quant, cache_len, cache, .. } = geometry;
        let (current_rows, all_rows) = (stores.total_seqlen(), stores.total_kvlen());
        let pointers = stores.pointers();
        let copy = |data, element: ElementType, len| {
            // SAFETY: Stores: `data` is valid for reads of its shape, initialized, and `len` is that shape's elements.
            unsafe { upload(data, element.byte_len(len), self.shift(element)) }
        };
        let current = pointers.current.map(|data| copy(data, t1, current_rows * num_heads * head_dim));
        let device_cache = copy(pointers.cache, t2, cache_len);
        let scale = match quant {
            Some(quant) => copy(pointers.scale, quant.t3, quant.scale_len),
            None => DeviceMemory::new(0, 0),
        };
        let (cachestarts, addressing) = match stores.indices().addressing {
            Addressing::Offset { cachestarts } => (cachestarts, DeviceAddressing::Offset),
            Addressing::Paged { cachestarts, max_p, page_size } => {
                (cachestarts, DeviceAddressing::Paged { max_p, page_size })
            }
        };
        let indices = [stores.indices().seqstarts, stores.indices().start_pos, cachestarts];
        let indices = indices.map(DeviceMemory::of_indices);
        let status = DeviceMemory::of(&[0; 8], 0);
        let device_stores = DeviceStores {
            geometry,
            // An upper bound of MaxT is enough, since a problem's slots are inside the cache.
            max_t: cache_len.checked_div(cache.token).unwrap_or(0),
            addressing,
            current_rows,
            all_rows,
            exact_rows: true,
            current: [current[0].address(), current[1].address()],
            cache: device_cache.address(),
            scale: scale.address(),
            seqstarts: indices[0].address(),
            start_pos: indices[1].address(),
            cachestarts: indices[2].address(),
            status: status.address(),
        };
        Uploaded { stores: device_stores, current, cache: device_cache, scale, indices, status }
    }

    /// Runs a launch.
    ///
    /// # Panics
    /// If it violates a rule for kernels, or a kernel reports a finding, though the problem has been checked.
    pub(crate) fn launch<P: Copy>(
        &self,
        what: &Launch<P>,
        status: &DeviceMemory,
        [reads, writes]: [&[&DeviceMemory]; 2],
    ) {
        let reads = reads.iter().map(|memory| memory.region(Access::Read));
        let writes = writes.iter().map(|memory| memory.region(Access::Write));
        let memory = Memory::new(reads.chain(writes).chain([status.region(Access::Atomic)]));
        let mutated = self.mutant.and_then(|mutant| mutant.kernels.get(what.kernel));
        let code = mutated.unwrap_or_else(|| code(what.module, what.kernel, self.freedom));
        // SAFETY: the regions are DeviceMemory, which the caller has borrowed and nobody else uses.
        let counts = unsafe { launch(code, &memory, what, self.order, self.counts) };
        let counts = counts.unwrap_or_else(|fault| panic!("{fault}"));
        if let Some(launched) = self.launched {
            launched.lock().unwrap_or_else(PoisonError::into_inner).entry(what.kernel).or_default().add(&counts);
        }
        let word = status.bytes().try_into().map_or(u64::MAX, u64::from_ne_bytes);
        let found = Status::from_word(word);
        assert!(found.is_none(), "{found:?}");
    }
}

/// A copy of memory of the host.
///
/// # Safety
/// Unless `len` is 0, `data` is valid for reads of `len` initialized bytes.
pub(crate) unsafe fn upload(data: *const u8, len: usize, shift: usize) -> DeviceMemory {
    match len {
        0 => DeviceMemory::new(0, shift),
        // SAFETY: see `# Safety`.
        len => DeviceMemory::of(unsafe { std::slice::from_raw_parts(data, len) }, shift),
    }
}

/// Copies device memory back to the host.
///
/// # Safety
/// `to` is valid for writes of as many bytes.
pub(crate) unsafe fn download(from: &DeviceMemory, to: *mut u8) {
    if !from.bytes().is_empty() {
        // SAFETY: `to` is valid for as many bytes: see `# Safety`; a DeviceMemory is an allocation of its own.
        unsafe { to.copy_from_nonoverlapping(from.bytes().as_ptr(), from.bytes().len()) }
    }
}

impl Kernel for EmulatedCuda {
    fn name(&self) -> &'static str {
        self.mutant.map_or("cuda-emulated", |mutant| &mutant.name)
    }

    fn store(&self, stores: Stores<'_>, _: &dyn Workers) {
        let uploaded = self.upload(&stores);
        let Uploaded { stores: device_stores, current: [key, value], cache, scale, .. } = &uploaded;
        let Some(store) = device_stores.store(self.multiprocessors).expect("a test's problem is small") else { return };
        let [seqstarts, start_pos, cachestarts] = &uploaded.indices;
        let mut reads = vec![key, value, seqstarts, start_pos, cachestarts];
        let mut writes = vec![cache];
        let is_read = device_stores.geometry.quant.is_some_and(|quant| quant.has_static_scales());
        let of_scale = if is_read { &mut reads } else { &mut writes };
        of_scale.push(scale);
        self.launch(&store, &uploaded.status, [&reads, &writes]);
        // SAFETY: Stores: `cache` and `scale` are valid for writes of their shapes, whose bytes were uploaded.
        unsafe {
            download(cache, stores.pointers().cache);
            download(scale, stores.pointers().scale);
        }
    }

    fn load(&self, problem: &mut Problem<'_>, _: &dyn Workers) {
        let uploaded = self.upload(problem.stores());
        let Uploaded { stores, cache, scale, .. } = &uploaded;
        let (Outputs { num_repeat, pointers }, Geometry { num_heads, head_dim, t1, .. }) =
            (problem.outputs(), stores.geometry);
        let output_len = t1.byte_len(stores.all_rows * num_heads * num_repeat * head_dim);
        let outputs = [(); 2].map(|()| DeviceMemory::new(output_len, self.shift(t1)));
        let addresses = outputs.each_ref().map(DeviceMemory::address);
        let device_problem = DeviceProblem { stores: *stores, num_repeat, outputs: addresses };
        let Some(load) = device_problem.load(self.multiprocessors).expect("a test's problem is small") else { return };
        let [seqstarts, start_pos, cachestarts] = &uploaded.indices;
        let reads = [cache, scale, seqstarts, start_pos, cachestarts];
        self.launch(&load, &uploaded.status, [&reads, &outputs.each_ref()]);
        for (output, to) in outputs.iter().zip(pointers) {
            // SAFETY: Problem: `outputs` are valid for writes of their shapes, as long as the device's.
            unsafe { download(output, to) };
        }
    }
}
