//! Writes cases as files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kvcache_schema::{ElementType, static_key_value_cache};
use prost::Message;
use thiserror::Error;

use super::expectation::{Expectation, TestCase};
use crate::onnx::{Dims, LeftOut, NodeCase, TensorProto};
use crate::tensor::Tensor;

/// Why the cases could not be written.
#[derive(Debug, Error)]
#[error("{} cannot be written: {source}", path.display())]
pub struct ExportError {
    /// The file or folder.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Folders in `node`.
    pub tests: usize,
    /// Folders in `refused`.
    pub refused: usize,
    /// Data sets in both.
    pub data_sets: usize,
}

/// What tells calls apart that cannot have one model: the names, types and ranks of the inputs.
type Signature = Vec<(&'static str, ElementType, usize)>;

/// Writes cases into a folder, which must not have any tests yet.
///
/// # Errors
/// If a file cannot be written, or is there already.
pub fn export<'a>(folder: &Path, cases: impl IntoIterator<Item = TestCase<'a>>) -> Result<Written, ExportError> {
    let mut written = Written::default();
    create(folder)?;
    for part in ["node", "refused"] {
        create_new(&folder.join(part))?;
    }
    write(&folder.join("README.md"), include_bytes!("README.md"))?;
    for test in cases {
        let is_refused = |i: usize| matches!(test.expected[i], Expectation::Refusal { .. });
        let (refused, done) = (0..test.expected.len()).partition::<Vec<_>, _>(|&i| is_refused(i));
        written.tests += models(&folder.join("node"), &test, &done)?;
        written.refused += models(&folder.join("refused"), &test, &refused)?;
        written.data_sets += test.expected.len();
    }
    Ok(written)
}

/// Writes these calls of a case: as many tests as they need models.
fn models(folder: &Path, test: &TestCase<'_>, calls: &[usize]) -> Result<usize, ExportError> {
    let mut groups: Vec<(Signature, Vec<usize>)> = Vec::new();
    for &i in calls {
        let signature: Signature =
            test.case.given(i).map(|(name, tensor)| (name, tensor.element(), tensor.shape().len())).collect();
        match groups.iter_mut().find(|(other, _)| *other == signature) {
            Some((_, group)) => group.push(i),
            None => groups.push((signature, vec![i])),
        }
    }
    for (number, (_, group)) in groups.iter().enumerate() {
        let suffix = if number == 0 { String::new() } else { format!("_{}", number + 1) };
        let folder = folder.join(format!("test_{}{suffix}", test.name));
        create_new(&folder)?;
        write(&folder.join("model.onnx"), &model(test, group))?;
        if test.any_nan {
            write(&folder.join("any_nan.txt"), b"A NaN equals any other NaN.\n")?;
        }
        for (set, &i) in group.iter().enumerate() {
            data_set(&folder.join(format!("test_data_set_{set}")), test, i)?;
        }
    }
    Ok(groups.len())
}

/// The model of these calls, with the extents that all of them have.
fn model(test: &TestCase<'_>, calls: &[usize]) -> Vec<u8> {
    let TestCase { case, expected, .. } = test;
    let mut shapes: BTreeMap<&str, Dims> = BTreeMap::new();
    let mut meet = |name: &'static str, tensor: &Tensor| {
        let dims = || tensor.shape().iter().copied().map(Some);
        let common = shapes.entry(name).or_insert_with(|| dims().collect());
        for (common, extent) in common.iter_mut().zip(dims()) {
            *common = common.filter(|_| *common == extent);
        }
    };
    for &i in calls {
        case.given(i).for_each(|(name, tensor)| meet(name, tensor));
        if let Expectation::Success { outputs, .. } = &expected[i] {
            case.outputs.iter().zip(outputs).for_each(|(name, tensor)| meet(name, tensor));
        }
    }
    // A refused call has no outputs.
    let rank = if case.domain == static_key_value_cache::DOMAINS[0] { 4 } else { 3 };
    let dims = |name: &str| Some(shapes.get(name).cloned().unwrap_or_else(|| vec![None; rank]));
    case.node(calls[0], case.domain, LeftOut::Unnamed, dims).about(test.about).model()
}

/// Writes a call.
fn data_set(folder: &Path, test: &TestCase<'_>, i: usize) -> Result<(), ExportError> {
    create_new(folder)?;
    let TestCase { case, expected, .. } = test;
    let tensor = |file: String, name: &str, tensor: &Tensor| {
        write(&folder.join(format!("{file}.pb")), &TensorProto::new(name, tensor).encode_to_vec())
    };
    let before = state(case, &expected[..i]);
    let after = state(case, &expected[..=i]);
    for (k, (name, given)) in case.given(i).enumerate() {
        let in_state = |state: &[(&str, &Tensor)]| -> Option<Tensor> {
            state.iter().find(|(other, _)| *other == name).map(|&(_, tensor)| tensor.clone())
        };
        tensor(format!("input_{k}"), name, &in_state(&before).unwrap_or_else(|| given.clone()))?;
        if let Some(after) = in_state(&after) {
            tensor(format!("inplace_{k}"), name, &after)?;
        }
    }
    match &expected[i] {
        Expectation::Success { outputs, within, .. } => {
            for (k, (name, output)) in case.outputs.iter().zip(outputs).enumerate() {
                tensor(format!("output_{k}"), name, output)?;
            }
            if let Some((exact, tolerance)) = within {
                tensor("exact_0".to_owned(), case.outputs[0], exact)?;
                tensor("tolerance_0".to_owned(), case.outputs[0], tolerance)?;
            }
            Ok(())
        }
        Expectation::Refusal { kind, mentions } => {
            let lines = [*kind].into_iter().chain(mentions.iter().map(String::as_str));
            let text: String = lines.flat_map(|line| [line, "\n"]).collect();
            write(&folder.join("expected_error.txt"), text.as_bytes())
        }
    }
}

/// The state after some calls: that of the last one that succeeds, or the first.
fn state<'a>(case: &NodeCase<'a>, calls: &[Expectation<'a>]) -> Vec<(&'static str, &'a Tensor)> {
    let after = calls.iter().rev().find_map(|call| match call {
        Expectation::Success { state, .. } => Some(state.clone()),
        Expectation::Refusal { .. } => None,
    });
    after.unwrap_or_else(|| case.state.clone())
}

fn create(folder: &Path) -> Result<(), ExportError> {
    fs::create_dir_all(folder).map_err(|source| ExportError { path: folder.to_owned(), source })
}

/// Creates a folder that is not there yet.
fn create_new(folder: &Path) -> Result<(), ExportError> {
    fs::create_dir(folder).map_err(|source| ExportError { path: folder.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    fs::write(path, bytes).map_err(|source| ExportError { path: path.to_owned(), source })
}
