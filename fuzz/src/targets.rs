//! The targets by name.

use crate::variation::Form;
use crate::{attention, dlpack, manager_script, session_reader, validation};

#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its program and of its kept inputs' folder.
    pub name: &'static str,
    pub form: Form,
    /// About how many inputs a second of CPU time takes under AddressSanitizer.
    pub per_second: u64,
    pub run: fn(&[u8]),
}

/// Choices: any bytes are a call or a script.
const fn choices(name: &'static str, per_second: u64, run: fn(&[u8])) -> Target {
    Target { name, form: Form::Choices, per_second, run }
}

pub const TARGETS: [Target; 5] = [
    choices("validation", 300, validation::run),
    choices("attention", 40, attention::run),
    choices("dlpack", 800, dlpack::run),
    Target { name: "session_reader", form: Form::File, per_second: 500, run: session_reader::run },
    choices("manager_script", 60, manager_script::run),
];

/// Changes an input of a target in place, as libFuzzer does or by its form; gives its new length.
#[cfg(feature = "libfuzzer")]
pub fn mutate(target: &str, data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut random = kvcache_conformance::random::Unstructured::seed(seed.into());
    let form = TARGETS.iter().find(|other| other.name == target).map(|target| target.form);
    let Some(form) = form.filter(|_| random.below(2) == 0) else {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    };
    let mut input = data[..size].to_vec();
    form.vary(&mut input, &mut random);
    input.truncate(max_size);
    data[..input.len()].copy_from_slice(&input);
    input.len()
}
