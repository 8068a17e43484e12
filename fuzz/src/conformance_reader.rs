//! Folders of cases, and results of programs, of any contents: the conformance suite's readers give a case or an error,
//! and what is read can be run and reported on.
//!
//! An input is `case.yaml`, the header of its tensors, their bytes, and a program's result in two such parts, with
//! [`SEPARATOR`] between them.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvcache_golden::{Program, attention, read_cases, run as run_cases, static_batching};
use tempfile::TempDir;

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
        match read_cases(folder) {
            Ok(cases) => reports.push(run_cases(&program, &cases)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        match static_batching::read_cases(folder) {
            Ok(cases) => reports.push(run_cases(&program, &cases)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        match attention::read_cases(folder) {
            Ok(cases) => reports.push(attention::run(&program, &cases)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        tally::count(!reports.is_empty());
        for report in reports {
            assert!(!report.text().is_empty() && !report.json().is_empty());
        }
    });
}
