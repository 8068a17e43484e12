//! Folders of cases of any contents: the conformance kit's readers give a case or an error, and what is read has the
//! tensors of the file, and can be reported on.
//!
//! An input is `case.yaml`, the header of its tensors and their bytes, with [`SEPARATOR`] between them.

use std::fs;

use kvcache_conformance::{
    CallResult, Case, Expected, Implementation, NamedInputs, Outcome, Tensor, attention, read_cases, run as run_cases,
    static_batching,
};
use kvcache_op::ElementType;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::tally;

/// What is between the parts of an input. Neither YAML nor JSON has it.
pub const SEPARATOR: &[u8] = b"\n\0\n";

thread_local! {
    /// A folder of one case for all runs.
    static CASES: TempDir = TempDir::new_in(tally::directory()).expect("a folder");
}

/// An implementation that refuses everything.
struct Nothing;

impl<A, I> Implementation<A, I> for Nothing {
    fn run(&self, case: &Case<A, I>) -> Result<Vec<CallResult>, String> {
        let (cache, scale) = (&case.cache, &case.scale);
        let refuse = |_| CallResult { outcome: Outcome::refused("no"), cache: cache.clone(), scale: scale.clone() };
        Ok(case.steps.iter().map(refuse).collect())
    }
}

/// The parts of an input; those that are missing are empty.
pub fn parts(bytes: &[u8]) -> [&[u8]; 3] {
    let mut rest = bytes;
    [(); 3].map(|()| {
        let end = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        let (part, after) = end.map_or((rest, &[][..]), |end| (&rest[..end], &rest[end + SEPARATOR.len()..]));
        rest = after;
        part
    })
}

/// A file of tensors: the length of its header, the header, the bytes.
fn safetensors(header: &[u8], bytes: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, bytes].concat()
}

/// Whether a tensor of a file may be such as no case can hold: by its type, or by the shape that a case gives for int4.
fn may_be_untenable(yaml: &[u8], bytes: &[u8]) -> bool {
    let held = [Dtype::F32, Dtype::F16, Dtype::I8, Dtype::I64];
    let is_held = |file: SafeTensors<'_>| file.iter().all(|(_, view)| held.contains(&view.dtype()));
    yaml.windows(4).any(|word| word == b"int4") || !SafeTensors::deserialize(bytes).is_ok_and(is_held)
}

/// Whether every tensor of a case is the one of its name in the file.
fn is_as_in_the_file<A, I: NamedInputs>(case: &Case<A, I>, bytes: &[u8]) {
    let file = SafeTensors::deserialize(bytes).expect("a file that was read");
    let is_same = |name: String, tensor: &Tensor| {
        let view = file.tensor(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let dtype = match tensor.element() {
            ElementType::Float32 => Dtype::F32,
            ElementType::Float16 => Dtype::F16,
            ElementType::Int8 => Dtype::I8,
            ElementType::Int64 => Dtype::I64,
            _ => Dtype::U8,
        };
        assert_eq!(view.dtype(), dtype, "{name}");
        // Of packed int4 the case gives the shape.
        assert!(dtype == Dtype::U8 || view.shape() == tensor.shape(), "{name} is of shape {:?}", tensor.shape());
        assert!(view.data() == tensor.bytes(), "{name} has other bytes");
    };
    is_same("cache".to_owned(), &case.cache);
    case.scale.iter().for_each(|scale| is_same("scale".to_owned(), scale));
    for (i, step) in case.steps.iter().enumerate() {
        step.inputs.named().into_iter().for_each(|(name, tensor)| is_same(format!("{i}.{name}"), tensor));
        if let Expected::Success(after) = &step.expected {
            let outputs = [("key", &after.outputs.key), ("value", &after.outputs.value), ("cache", &after.cache)];
            let scale = after.scale.iter().map(|scale| ("scale", scale));
            outputs.into_iter().chain(scale).for_each(|(name, tensor)| is_same(format!("{i}.{name}"), tensor));
        }
    }
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let [yaml, header, tensors] = parts(bytes);
    CASES.with(|cases| {
        let (folder, file) = (cases.path(), safetensors(header, tensors));
        let case = folder.join("case");
        fs::create_dir_all(&case).expect("a folder");
        fs::write(case.join("case.yaml"), yaml).expect("a written file");
        fs::write(case.join("tensors.safetensors"), &file).expect("a written file");
        let may_fail = may_be_untenable(yaml, &file);
        let check = |error: String| assert!(may_fail || !error.contains("no case can hold"), "{error}");
        let mut reports = Vec::new();
        match read_cases(folder) {
            Ok(cases) => {
                cases.iter().for_each(|case| is_as_in_the_file(case, &file));
                reports.push(run_cases(&Nothing, &cases));
            }
            Err(error) => check(error.to_string()),
        }
        match static_batching::read_cases(folder) {
            Ok(cases) => {
                cases.iter().for_each(|case| is_as_in_the_file(case, &file));
                reports.push(run_cases(&Nothing, &cases));
            }
            Err(error) => check(error.to_string()),
        }
        match attention::read_cases(folder) {
            Ok(cases) => cases.iter().for_each(|case| assert!(!case.steps.is_empty())),
            Err(error) => check(error.to_string()),
        }
        tally::count(!reports.is_empty());
        for report in reports {
            assert!(!report.text().is_empty() && !report.json().is_empty());
        }
    });
}
