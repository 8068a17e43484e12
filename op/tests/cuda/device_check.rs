//! What the host checks of a call on a device, without a device: addresses are never dereferenced.

use kvcache_conformance::backends::read;
use kvcache_conformance::{Case, Expected, Step, Tensor};
use kvcache_op::cuda::{DeviceInputs, DeviceMut, DeviceRef, OutputRows};
use kvcache_op::{Error, IndexInputs, KeyValueCache};

/// An address that tensor number `i` could have.
fn address(i: u64) -> u64 {
    (1 << 44) + (i << 36)
}

fn read_at(tensor: &Tensor, i: u64) -> DeviceRef<'_> {
    // SAFETY: no call is launched.
    unsafe { DeviceRef::from_raw_parts(tensor.element(), tensor.shape(), address(i)) }
}

fn write_at(tensor: &Tensor, i: u64) -> DeviceMut<'_> {
    // SAFETY: as above.
    unsafe { DeviceMut::from_raw_parts(tensor.element(), tensor.shape(), address(i)) }
}

/// The host's check of a step.
pub fn check(case: &Case, step: &Step) -> Result<(), Error> {
    let inputs = &step.inputs;
    let inputs = DeviceInputs {
        current_key: read_at(&inputs.current_key, 0),
        current_value: read_at(&inputs.current_value, 1),
        indices: IndexInputs {
            seqstarts: read_at(&inputs.seqstarts, 2),
            cachestarts: read_at(&inputs.cachestarts, 3),
            start_pos: read_at(&inputs.start_pos, 4),
            kvstarts: OutputRows::Kvstarts(read(&inputs.kvstarts)),
            max_seqlen: read(&inputs.max_seqlen),
            max_kvlen: read(&inputs.max_kvlen),
        },
    };
    let scale = case.scale.as_ref().map(|scale| write_at(scale, 6));
    KeyValueCache::new(case.attributes.clone())?.check_device(inputs, write_at(&case.cache, 5), scale).map(drop)
}

/// The kind of error of a step that must be refused but that the host's check accepts, so that the device must find it.
pub fn left_to_device<'a>(case: &Case, step: &'a Step) -> Option<&'a str> {
    match &step.expected {
        Expected::Refusal { kind, .. } if check(case, step).is_ok() => Some(kind),
        _ => None,
    }
}
