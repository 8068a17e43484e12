//! The CUDA kernels as an attention kernel of the host.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use kvcache_attention::cuda::{AttentionParameters, DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
use kvcache_attention::{AttentionGeometry, AttentionKernel, AttentionPointers, AttentionProblem, Keys};
use kvcache_kernels::Workers;
use kvcache_kernels::cuda::{Launch, Status};

use crate::builds::{ATTENTION, Build};
use crate::device_memory::DeviceMemory;
use crate::kernel::{EmulatedCuda, Failure, Uploaded, download};
use crate::launch::{Access, Operand, Order, launch};

/// An emulated device: copies a problem's tensors to its memory, launches, and copies back what was written.
///
/// As an [`AttentionKernel`] it panics on a [`Failure`].
#[derive(Debug, Clone, Copy)]
pub struct EmulatedAttention {
    /// The build to run, for problems of its types only; `None` for the unchanged kernels.
    pub build: Option<&'static Build>,
    /// Whether tensors are aligned for their type only, so that narrow kernels run.
    pub unaligned: bool,
    /// The device's multiprocessors; 0 counts as 1.
    pub multiprocessors: u32,
    /// The order of the threads.
    pub order: Order,
    /// The bound of seqlen that the caller says: it decides which sequences are decoding steps.
    pub max_seqlen: usize,
    /// Collects the names of the kernels that are launched.
    pub launched: Option<&'static Mutex<BTreeSet<&'static str>>>,
}

impl Default for EmulatedAttention {
    fn default() -> Self {
        Self {
            build: None,
            unaligned: false,
            multiprocessors: 1,
            order: Order::Forward,
            max_seqlen: usize::MAX,
            launched: None,
        }
    }
}

/// The keys and values of a problem in device memory.
enum UploadedKeys {
    Packed { rows: [DeviceMemory; 2], starts: [DeviceMemory; 2], status: DeviceMemory },
    Cache(Box<Uploaded>),
}

impl UploadedKeys {
    fn status(&self) -> &DeviceMemory {
        match self {
            Self::Packed { status, .. } => status,
            Self::Cache(uploaded) => &uploaded.status,
        }
    }

    /// What the attention reads.
    fn reads(&self) -> Vec<&DeviceMemory> {
        match self {
            Self::Packed { rows, starts, .. } => rows.iter().chain(starts).collect(),
            Self::Cache(uploaded) => uploaded.indices.iter().chain([&uploaded.cache, &uploaded.scale]).collect(),
        }
    }
}

impl EmulatedAttention {
    fn upload_keys(&self, problem: &AttentionProblem<'_>) -> (UploadedKeys, DeviceKeys) {
        let AttentionGeometry { num_kv_heads, head_dim, t1, .. } = *problem.geometry();
        match problem.keys() {
            Keys::Packed(pointers) => {
                let len = problem.total_kvlen() * num_kv_heads * head_dim * (t1.bits() / 8);
                let shift = if self.unaligned { t1.align() } else { 0 };
                // SAFETY: AttentionProblem: both are valid for reads of their shape, of `len` bytes.
                let rows = pointers.map(|data| unsafe { upload(data, len, shift) });
                let indices = problem.indices();
                let starts = [indices.seqstarts, indices.kvstarts].map(|starts| {
                    DeviceMemory::of(&starts.iter().flat_map(|start| start.to_ne_bytes()).collect::<Vec<_>>(), 0)
                });
                let status = DeviceMemory::of(&[0; 8], 0);
                let keys = DeviceKeys::Packed(DevicePacked {
                    rows_at: [rows[0].address(), rows[1].address()],
                    rows: problem.total_kvlen(),
                    seqstarts: starts[0].address(),
                    kvstarts: starts[1].address(),
                    exact_rows: true,
                    status: status.address(),
                });
                (UploadedKeys::Packed { rows, starts, status }, keys)
            }
            Keys::Cache(stored) => {
                let device = EmulatedCuda { unaligned: self.unaligned, ..EmulatedCuda::default() };
                let uploaded = Box::new(device.upload(stored));
                let keys = DeviceKeys::Cache(uploaded.problem);
                (UploadedKeys::Cache(uploaded), keys)
            }
        }
    }

    fn launch(
        &self,
        what: &Launch<AttentionParameters>,
        status: &DeviceMemory,
        reads: &[&DeviceMemory],
        writes: &[&DeviceMemory],
    ) -> Result<(), Failure> {
        let build = self.build.or_else(|| ATTENTION.iter().find(|build| build.types == what.module.types));
        let build = build.unwrap_or_else(|| unreachable!("all types are built, {} too", what.module.types));
        let reads = reads.iter().map(|&memory| (memory, Access::Read));
        let writes = writes.iter().map(|&memory| (memory, Access::Write));
        let operands = reads.chain(writes).chain([(status, Access::Atomic)]);
        let operands: Vec<_> = operands.map(|(memory, access)| Operand { memory, access }).collect();
        launch(build, what, &operands, self.order)?;
        if let Some(launched) = self.launched {
            launched.lock().unwrap_or_else(PoisonError::into_inner).insert(what.kernel);
        }
        let word = status.bytes().try_into().map_or(u64::MAX, u64::from_ne_bytes);
        Status::from_word(word).map_or(Ok(()), |status| Err(status.into()))
    }

    /// Attends as [`AttentionKernel::attend`] does.
    ///
    /// # Errors
    /// [`Failure`]; memory of the problem is then as it was.
    pub fn try_attend(&self, problem: &mut AttentionProblem<'_>) -> Result<(), Failure> {
        let geometry = *problem.geometry();
        let AttentionPointers { query, attn_mask, attn_output } = problem.pointers();
        let shift = if self.unaligned { geometry.t1.align() } else { 0 };
        let size = geometry.t1.bits() / 8;
        let query_rows = problem.total_seqlen();
        let len = query_rows * geometry.num_heads * geometry.head_dim * size;
        // SAFETY: AttentionProblem: `query` is valid for reads of its shape, of `len` bytes.
        let query = unsafe { upload(query, len, shift) };
        let mask = attn_mask.map(|mask| {
            let planes = if mask.per_head { geometry.num_heads } else { 1 };
            // SAFETY: AttentionProblem: the mask is valid for reads of its shape, which has these bytes.
            unsafe { upload(mask.data, planes * query_rows * mask.width * size, shift) }
        });
        let output = DeviceMemory::new(len, shift);
        let (keys, device_keys) = self.upload_keys(problem);
        let mut call = DeviceAttention {
            geometry,
            keys: device_keys,
            query_rows,
            max_seqlen: self.max_seqlen,
            query: query.address(),
            attn_mask: attn_mask.zip(mask.as_ref()).map(|(mask, memory)| DeviceMask {
                address: memory.address(),
                width: mask.width,
                per_head: mask.per_head,
            }),
            attn_output: output.address(),
            scratch: 0,
            multiprocessors: self.multiprocessors,
        };
        let scratch = DeviceMemory::new(call.scratch_bytes()?, 0);
        call.scratch = scratch.address();
        let launches = call.launches()?;
        let mut reads = keys.reads();
        reads.push(&query);
        reads.extend(&mask);
        if let Some(attend) = &launches.attend {
            self.launch(attend, keys.status(), &reads, &[&output, &scratch])?;
        }
        if let Some(combine) = &launches.combine {
            reads.push(&scratch);
            self.launch(combine, keys.status(), &reads, &[&output])?;
        }
        // SAFETY: AttentionProblem: `attn_output` is valid for writes of its shape, as long as the device's.
        unsafe { download(&output, attn_output) };
        Ok(())
    }
}

/// A copy of memory of the host.
///
/// # Safety
/// Unless `len` is 0, `data` is valid for reads of `len` initialized bytes.
unsafe fn upload(data: *const u8, len: usize, shift: usize) -> DeviceMemory {
    match len {
        0 => DeviceMemory::new(0, shift),
        // SAFETY: see `# Safety`.
        len => DeviceMemory::of(unsafe { std::slice::from_raw_parts(data, len) }, shift),
    }
}

impl AttentionKernel for EmulatedAttention {
    fn name(&self) -> &'static str {
        self.build.map_or("cuda-emulated", |build| build.name)
    }

    fn attend(&self, problem: &mut AttentionProblem<'_>, _: &dyn Workers) {
        self.try_attend(problem).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
