//! The same call in C: what a program pays that calls the operator through `kvcache.h`.

use std::ffi::{CStr, c_void};
use std::ptr;

use kvcache::{
    kvcache_attributes, kvcache_create, kvcache_error, kvcache_error_free, kvcache_error_message, kvcache_free,
    kvcache_indices, kvcache_inputs, kvcache_operator, kvcache_run, kvcache_task, kvcache_workers,
    kvcache_workers_free, kvcache_workers_from,
};
use kvcache_op::Workers;
use kvcache_op::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

use crate::description::{CallDescription, TensorDescription};
use crate::team::Team;

/// An operator with all tensors of a call, as C describes them.
pub(crate) struct CCall {
    op: *mut kvcache_operator,
    /// The ten inputs in the specification's order, then `key` and `value`; null if left out.
    tensors: [Option<DLTensor>; 12],
    /// What the tensors' shapes point to.
    _shapes: Box<[[i64; 5]; 12]>,
}

impl CCall {
    /// The call that `description` describes, whose numbers have been checked.
    ///
    /// # Errors
    /// As for `kvcache_create`.
    pub(crate) fn new(description: &CallDescription) -> Result<Self, String> {
        let [num_layer, layer_idx, quant_bit, quant_group, num_repeat, cache_mode, cache_layout, page_size] =
            description.attributes;
        let attributes = kvcache_attributes {
            num_layer,
            layer_idx,
            quant_bit,
            quant_group,
            num_repeat,
            cache_mode,
            cache_layout,
            page_size,
        };
        let mut op = ptr::null_mut();
        // SAFETY: both are borrowed.
        done(unsafe { kvcache_create(&attributes, &mut op) })?;
        let mut shapes = Box::new(description.tensors.map(|tensor| tensor.shape));
        let mut tensors = [None; 12];
        for ((made, shape), tensor) in tensors.iter_mut().zip(shapes.iter_mut()).zip(&description.tensors) {
            *made = (tensor.element != 0).then(|| described(tensor, shape.as_mut_ptr()));
        }
        Ok(Self { op, tensors, _shapes: shapes })
    }

    /// Makes the call on the threads of `team`.
    ///
    /// # Errors
    /// As for `kvcache_run`.
    ///
    /// # Safety
    /// The memory that the description names is valid as [`BoundCall::new`](crate::call::BoundCall::new) requires.
    pub(crate) unsafe fn run(&self, team: &Team) -> Result<(), String> {
        let at = |i: usize| self.tensors[i].as_ref().map_or(ptr::null(), ptr::from_ref);
        let inputs = kvcache_inputs {
            current_key: at(0),
            current_value: at(1),
            indices: kvcache_indices {
                seqstarts: at(2),
                kvstarts: at(3),
                cachestarts: at(4),
                start_pos: at(5),
                max_seqlen: at(6),
                max_kvlen: at(7),
            },
        };
        let mut workers: *mut kvcache_workers = ptr::null_mut();
        let context = ptr::from_ref(team).cast_mut().cast();
        // SAFETY: `workers` is borrowed, and freed before the team, whose functions any thread may call.
        done(unsafe { kvcache_workers_from(team.threads(), Some(on_team), context, &mut workers) })?;
        // SAFETY: the operator and the workers are alive, and the tensors' memory is valid: this function's condition.
        let outcome = done(unsafe { kvcache_run(self.op, &inputs, at(8), at(9), at(10), at(11), workers) });
        // SAFETY: made above, and not used again.
        unsafe { kvcache_workers_free(workers) };
        outcome
    }
}

impl Drop for CCall {
    fn drop(&mut self) {
        // SAFETY: `kvcache_create` made it, and nobody uses it again.
        unsafe { kvcache_free(self.op) };
    }
}

/// Runs the parts of a loop on the threads of a [`Team`].
///
/// # Safety
/// `context` is a [`Team`], and `task` may be called with `argument` from any thread.
unsafe extern "C" fn on_team(context: *mut c_void, tasks: usize, task: kvcache_task, argument: *mut c_void) {
    // SAFETY: `CCall::run` passes a team that it borrows.
    let team = unsafe { &*context.cast_const().cast::<Team>() };
    let argument = argument as usize;
    // SAFETY: this function's condition.
    team.run(tasks, &|index| unsafe { task(argument as *mut c_void, index) });
}

/// The text of an error, which is then freed.
fn done(error: *mut kvcache_error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error of the library's, freed once, after its text has been copied.
    unsafe {
        let text = CStr::from_ptr(kvcache_error_message(error)).to_string_lossy().into_owned();
        kvcache_error_free(error);
        Err(text)
    }
}

fn described(tensor: &TensorDescription, shape: *mut i64) -> DLTensor {
    let (code, bits) = match tensor.element {
        1 => (DLDataTypeCode::FLOAT, 32),
        3 => (DLDataTypeCode::INT, 8),
        7 => (DLDataTypeCode::INT, 64),
        10 => (DLDataTypeCode::FLOAT, 16),
        _ => (DLDataTypeCode::INT, 4),
    };
    DLTensor {
        data: tensor.data.cast(),
        device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        ndim: tensor.rank,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape,
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}
