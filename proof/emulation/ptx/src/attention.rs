//! The CUDA kernels as an attention kernel of the host.

use std::mem::MaybeUninit;

use kvcache_attention::cuda::AttentionLaunches;
use kvcache_attention::{
    AttentionGeometry, AttentionKernel, AttentionPointers, AttentionProblem, DeviceAttention, DeviceKeys, DeviceMask,
    DevicePacked, Keys,
};
use kvcache_kernels::Workers;

use crate::kernel::{EmulatedCuda, Uploaded, download, upload};
use crate::memory::DeviceMemory;

/// An emulated device: copies a problem's tensors to its memory, launches, and copies back what was written.
///
/// Its [`AttentionKernel::attend`] panics where a launch fails, with memory of the problem as it was.
#[derive(Debug, Clone, Copy)]
pub struct EmulatedAttention {
    /// The device; it has at least one multiprocessor.
    pub device: EmulatedCuda,
    /// The bound of seqlen that the caller says: it decides which sequences are decoding steps.
    pub max_seqlen: usize,
    /// That of kvlen, which decides whether pieces are units.
    pub max_kvlen: usize,
}

impl Default for EmulatedAttention {
    fn default() -> Self {
        Self { device: EmulatedCuda::default(), max_seqlen: usize::MAX, max_kvlen: usize::MAX }
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
            Keys::Packed { pointers, indices } => {
                let len = t1.byte_len(problem.total_kvlen() * num_kv_heads * head_dim);
                let shift = if self.device.unaligned { t1.align() } else { 0 };
                // SAFETY: AttentionProblem: both are valid for reads of their shape, of `len` bytes.
                let rows = pointers.map(|data| unsafe { upload(data, len, shift) });
                let starts = [indices.seqstarts, indices.kvstarts].map(DeviceMemory::of_indices);
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
            Keys::Cache(stores) => {
                let uploaded = Box::new(self.device.upload(stores));
                let keys = DeviceKeys::Cache(uploaded.stores);
                (UploadedKeys::Cache(uploaded), keys)
            }
        }
    }
}

impl AttentionKernel for EmulatedAttention {
    fn name(&self) -> &'static str {
        self.device.mutant.map_or("cuda-emulated", |mutant| &mutant.name)
    }

    fn attend(
        &self,
        problem: &AttentionProblem<'_>,
        attn_output: &mut [MaybeUninit<u8>],
        mass: Option<&mut [MaybeUninit<f32>]>,
        _: &dyn Workers,
    ) {
        let geometry = *problem.geometry();
        let AttentionPointers { query, attn_mask, head_sink } = problem.pointers();
        let shift = if self.device.unaligned { geometry.t1.align() } else { 0 };
        let size = geometry.t1.byte_len(1);
        let query_rows = problem.total_seqlen();
        let len = problem.output_bytes();
        // SAFETY: AttentionProblem: `query` is valid for reads of its shape, of `len` bytes.
        let query = unsafe { upload(query, len, shift) };
        let mask = attn_mask.map(|mask| {
            let planes = if mask.per_head { geometry.num_heads } else { 1 };
            // SAFETY: AttentionProblem: the mask is valid for reads of its shape, which has these bytes.
            unsafe { upload(mask.data, planes * query_rows * mask.width * size, shift) }
        });
        // SAFETY: AttentionProblem: `head_sink` is valid for reads of its shape, of these bytes.
        let sinks = head_sink.map(|sinks| unsafe { upload(sinks, geometry.num_heads * size, shift) });
        let output = DeviceMemory::new(len, shift);
        let masses = DeviceMemory::new(mass.as_ref().map_or(0, |mass| size_of_val(&**mass)), 0);
        let (keys, device_keys) = self.upload_keys(problem);
        let mut call = DeviceAttention {
            geometry,
            keys: device_keys,
            query_rows,
            max_seqlen: self.max_seqlen,
            max_kvlen: self.max_kvlen,
            query: query.address(),
            attn_mask: attn_mask.zip(mask.as_ref()).map(|(mask, memory)| DeviceMask {
                address: memory.address(),
                width: mask.width,
                per_head: mask.per_head,
            }),
            head_sink: sinks.as_ref().map(DeviceMemory::address),
            attn_output: output.address(),
            attention_mass: mass.as_ref().map(|_| masses.address()),
            scratch: 0,
        };
        let scratch = DeviceMemory::new(call.scratch_bytes().expect("a test's problem is small"), 0);
        call.scratch = scratch.address();
        let launches = AttentionLaunches::new(&call, self.device.multiprocessors).expect("a test's problem is small");
        let mut reads = keys.reads();
        reads.push(&query);
        reads.extend(mask.iter().chain(&sinks));
        if let Some(attend) = &launches.attend {
            self.device.launch(attend, keys.status(), [&reads, &[&output, &scratch]]);
        }
        if let Some(combine) = &launches.combine {
            self.device.launch(combine, keys.status(), [&reads, &[&output, &scratch]]);
        }
        if let Some(sum) = &launches.mass {
            reads.push(&scratch);
            self.device.launch(sum, keys.status(), [&reads, &[&masses]]);
        }
        assert_eq!(attn_output.len(), len);
        // SAFETY: `attn_output` is as long as the device's, checked above.
        unsafe { download(&output, attn_output.as_mut_ptr().cast()) };
        // SAFETY: as long as the device's, which has been made so.
        mass.into_iter().for_each(|mass| unsafe { download(&masses, mass.as_mut_ptr().cast()) });
    }
}
