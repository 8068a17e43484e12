//! The host's checks of calls on a device agree with the golden cases. Needs no device: addresses are never
//! dereferenced.

use std::collections::BTreeMap;

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::backends::read;
use kvcache_conformance::{Case, Expected, Step, Suite, Tensor, cases};
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

fn check(case: &Case, step: &Step) -> Result<(), Error> {
    let inputs = &step.inputs;
    let inputs = DeviceInputs {
        current_key: read_at(&inputs["current_key"], 0),
        current_value: read_at(&inputs["current_value"], 1),
        indices: IndexInputs {
            seqstarts: read_at(&inputs["seqstarts"], 2),
            cachestarts: read_at(&inputs["cachestarts"], 3),
            start_pos: read_at(&inputs["start_pos"], 4),
            kvstarts: OutputRows::Kvstarts(read(&inputs["kvstarts"])),
            max_seqlen: read(&inputs["max_seqlen"]),
            max_kvlen: read(&inputs["max_kvlen"]),
        },
    };
    let scale = case.scale.as_ref().map(|scale| write_at(scale, 6));
    KeyValueCache::new(cache_attributes(&case.attributes))?
        .check_device(inputs, write_at(case.cache(), 5), scale)
        .map(drop)
}

/// The kind of error of a step that must be refused but that the host's check accepts, so that the device must find it.
pub fn left_to_device<'a>(case: &Case, step: &'a Step) -> Option<&'a str> {
    match &step.expected {
        Expected::Refusal { kind, .. } if check(case, step).is_ok() => Some(kind),
        _ => None,
    }
}

/// Rules about values in device memory. The host checks all others.
const OF_THE_DEVICE: [&str; 9] = [
    "starts_not_zero",
    "starts_decrease",
    "starts_total",
    "start_pos_negative",
    "kvlen_mismatch",
    "max_too_small",
    "cache_range",
    "page_range",
    "write_conflict",
];

pub fn refuses_what_it_can_know_in_the_same_words() {
    let (mut legal, mut refused, mut left) = (0, 0, BTreeMap::new());
    for case in cases(Suite::KeyValueCache).expect("the golden cases can be read") {
        for step in &case.steps {
            match (&step.expected, check(&case, step)) {
                (Expected::Success(_), Ok(())) => legal += 1,
                (Expected::Success(_), Err(error)) => panic!("{}: {error}", case.name),
                // Where the device would see a wrong length first, the host may see what follows from it.
                (
                    Expected::Refusal { kind, .. },
                    Err(Error::SizeOverflow { input: "key", .. } | Error::TooManyPages { .. }),
                ) if OF_THE_DEVICE.contains(&kind.as_str()) => refused += 1,
                (Expected::Refusal { kind, mentions }, Err(error)) => {
                    assert_eq!(error.kind(), kind, "{}", case.name);
                    let message = error.to_string();
                    // The longest of the lengths in `seqstarts` is not known here: its bound is only compared with 0.
                    let known = !matches!(error, Error::MaxTooSmall { input: "max_seqlen", .. });
                    for mention in mentions.iter().filter(|_| known) {
                        assert!(message.contains(mention), "{}: {mention:?} in {message}", case.name);
                    }
                    refused += 1;
                }
                (Expected::Refusal { kind, .. }, Ok(())) => {
                    assert!(OF_THE_DEVICE.contains(&kind.as_str()), "{}: {kind}", case.name);
                    assert_eq!(left_to_device(&case, step), Some(kind.as_str()));
                    *left.entry(kind.clone()).or_insert(0) += 1;
                }
            }
        }
    }
    println!("{legal} legal, {refused} refused, left to the device: {left:?}");
    assert!(legal > 100 && refused > 50 && left.len() > 5);
}
