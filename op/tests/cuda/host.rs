//! The host's checks of calls on a device agree with the golden cases. Needs no device.

use std::collections::BTreeMap;

use kvcache_conformance::{Expected, cases};
use kvcache_op::Error;

use crate::device_check::{check, left_to_device};

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
    for case in cases().expect("the golden cases can be read") {
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
