//! Folders of cases, and results of programs, of any contents: the conformance suite's readers give a case or an error,
//! and what is read has the tensors of the file, and can be run and reported on.
//!
//! An input is `case.yaml`, the header of its tensors, their bytes, and a program's result in two such parts, with
//! [`SEPARATOR`] between them.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvcache_conformance::{
    Case, Expected, NamedInputs, Program, Tensor, attention, read_cases, run as run_cases, static_batching,
};
use kvcache_op::ElementType;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::case_oracle::is_as_in_the_text;
use crate::tally;

/// What is between the parts of an input. Neither YAML nor JSON has it.
pub const SEPARATOR: &[u8] = b"\n\0\n";

/// A folder of one case for all runs, and a program whose answer lies in it.
struct Place {
    cases: TempDir,
    tools: TempDir,
}

impl Place {
    fn new() -> Self {
        let cases = TempDir::new_in(crate::manager::directory()).expect("a folder");
        fs::create_dir(cases.path().join("case")).expect("a folder");
        let place = Self { cases, tools: TempDir::new_in(crate::manager::directory()).expect("a folder") };
        fs::write(place.program(), "#!/bin/sh\nexec cp \"$1/result\" \"$2\"\n").expect("a file");
        fs::set_permissions(place.program(), fs::Permissions::from_mode(0o755)).expect("a program");
        place
    }

    fn program(&self) -> PathBuf {
        self.tools.path().join("program")
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.cases.path().join("case").join(name), bytes).expect("a written file");
    }
}

thread_local! {
    static PLACE: RefCell<Place> = RefCell::new(Place::new());
}

/// The parts of an input; those that are missing are empty.
pub fn parts(bytes: &[u8]) -> [&[u8]; 5] {
    let mut rest = bytes;
    [(); 5].map(|()| {
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
    let [yaml, header, tensors, result_header, result] = parts(bytes);
    PLACE.with_borrow(|place| {
        place.write("case.yaml", yaml);
        place.write("tensors.safetensors", &safetensors(header, tensors));
        place.write("result", &safetensors(result_header, result));
        let folder: &Path = place.cases.path();
        let program = Program::new(place.program());
        let mut reports = Vec::new();
        let file = safetensors(header, tensors);
        let may_fail = may_be_untenable(yaml, &file);
        let check = |error: String| assert!(may_fail || !error.contains("no case can hold"), "{error}");
        match read_cases(folder) {
            Ok(cases) => {
                cases.iter().for_each(|case| is_as_in_the_file(case, &file));
                cases.iter().for_each(|case| is_as_in_the_text(case, yaml));
                reports.push(run_cases(&program, &cases));
            }
            Err(error) => check(error.to_string()),
        }
        match static_batching::read_cases(folder) {
            Ok(cases) => {
                cases.iter().for_each(|case| is_as_in_the_file(case, &file));
                cases.iter().for_each(|case| is_as_in_the_text(case, yaml));
                reports.push(run_cases(&program, &cases));
            }
            Err(error) => check(error.to_string()),
        }
        match attention::read_cases(folder) {
            Ok(cases) => reports.push(attention::run(&program, &cases)),
            Err(error) => check(error.to_string()),
        }
        tally::count(!reports.is_empty());
        for report in reports {
            assert!(!report.text().is_empty() && !report.json().is_empty());
        }
    });
}
