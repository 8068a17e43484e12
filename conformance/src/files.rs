//! The files of a case as a program is given them, and the file that it writes.

use std::collections::HashMap;
use std::fs;
use std::io;

use kvcache_schema::{ElementType, static_key_value_cache};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::case::{Case, Expected, Operator, Step};
use crate::implementation::{CallResult, Outcome};
#[cfg(feature = "embedded")]
use crate::read::embedded;
use crate::read::{CaseFile, CompareFile, NanFile, StepFile, TENSORS, YAML, dtype, read_tensor};
use crate::tensor::Tensor;

/// The contents of `case.yaml` and `tensors.safetensors`: the files that the case was read from, or new ones
/// for a random case of `KeyValueCache`.
///
/// # Errors
/// If a file cannot be read.
pub fn files(case: &Case) -> io::Result<[Vec<u8>; 2]> {
    #[cfg(feature = "embedded")]
    if let Some(files) = embedded::files(case) {
        return files.map_err(|cause| io::Error::other(cause.to_string()));
    }
    match case.folder.as_os_str().is_empty() {
        true => Ok([yaml(case).map_err(io::Error::other)?.into(), tensors(case).map_err(io::Error::other)?]),
        false => Ok([fs::read(case.folder.join(YAML))?, fs::read(case.folder.join(TENSORS))?]),
    }
}

fn yaml(case: &Case) -> Result<String, serde_yaml::Error> {
    let cache = case.cache.iter().filter(|cache| cache.element() == ElementType::Int4);
    let why = || "arithmetic makes NaN, with the machine's sign and payload".to_owned();
    let step = |step: &Step| match &step.expected {
        Expected::Success(_) => StepFile::default(),
        Expected::Refusal { kind, .. } => StepFile { error: Some(kind.clone()), mentions: Vec::new() },
    };
    serde_yaml::to_string(&CaseFile {
        about: case.about.clone(),
        rules: case.rules.clone(),
        operator: None,
        outputs: None,
        domain: (case.operator == Operator::StaticKeyValueCache).then(|| static_key_value_cache::DOMAINS[0].to_owned()),
        types: case.types().into_iter().map(|(name, element)| (name.to_owned(), element.name().to_owned())).collect(),
        attributes: case.attributes.iter().map(|(&name, &value)| (name.to_owned(), value.into())).collect(),
        int4: cache.map(|cache| ("cache".to_owned(), cache.shape().to_vec())).collect(),
        compare: case.any_nan.then(|| CompareFile { nan: NanFile::Any, why: why() }),
        steps: case.steps.iter().map(step).collect(),
    })
}

fn tensors(case: &Case) -> Result<Vec<u8>, SafeTensorError> {
    let before = [("cache", &case.cache), ("scale", &case.scale)].into_iter();
    let before = before.filter_map(|(name, tensor)| Some((name.to_owned(), tensor.as_ref()?)));
    let of_calls = case.steps.iter().enumerate().flat_map(|(i, step)| {
        let after = match &step.expected {
            Expected::Success(after) => Some(after),
            Expected::Refusal { .. } => None,
        };
        let all = step.inputs.iter().chain(after.into_iter().flatten());
        all.map(move |(name, tensor)| (format!("{i}.{name}"), tensor))
    });
    let named: Vec<_> = before.chain(of_calls).collect();
    let views = named.iter().map(|(name, tensor)| {
        // Two elements of int4 are a byte there, and a row of all of them.
        let (dtype, shape) = match dtype(tensor.element()) {
            Some(dtype) => (dtype, tensor.shape().to_vec()),
            None => (Dtype::U8, vec![tensor.bytes().len()]),
        };
        Ok((name.as_str(), TensorView::new(dtype, shape, tensor.bytes())?))
    });
    safetensors::serialize(views.collect::<Result<Vec<_>, SafeTensorError>>()?, None)
}

/// The results of a case's calls in the safetensors file that a program has written: for each call i `i.cache` and
/// `i.scale`, if there are any, and its outputs or, in the metadata, `i.error`, the message of a refusal. A program
/// that does not do what call i needs has in place of all of that, for it and the calls after it, `i.unsupported` in
/// the metadata: why.
///
/// # Errors
/// If it is no such file.
pub fn read_results(case: &Case, file: &[u8]) -> Result<Vec<CallResult>, String> {
    let unreadable = |error| format!("the program's result cannot be read: {error}");
    let (_, header) = SafeTensors::read_metadata(file).map_err(unreadable)?;
    let file = SafeTensors::deserialize(file).map_err(unreadable)?;
    let metadata: HashMap<String, String> = header.metadata().clone().unwrap_or_default();
    // A tensor after call `i`; if the one that it is like is int4, it is that too.
    let tensor = |i: usize, name: &str, like: Option<&Tensor>| {
        let int4 = like.filter(|like| like.element() == ElementType::Int4);
        let view = file.tensor(&format!("{i}.{name}")).map_err(unreadable)?;
        let is = || format!("the program's {i}.{name} is {:?} of shape {:?}", view.dtype(), view.shape());
        if let Some(like) = int4 {
            // As it lies in the case, or with the axes of the cache.
            let (whole, axes) = (vec![like.bytes().len()], packed_shape(like.shape()));
            if view.shape() != whole && Some(view.shape()) != axes.as_deref() {
                let axes = axes.map_or_else(String::new, |axes| format!(" or {axes:?}"));
                return Err(format!("{}, expected {whole:?}{axes}", is()));
            }
        }
        read_tensor(&view, int4.map(|like| like.shape().to_vec()).as_ref()).ok_or_else(is)
    };
    let state =
        |i, name: &str, like: &Option<Tensor>| like.as_ref().map(|like| tensor(i, name, Some(like))).transpose();
    let result = |i: usize| -> Result<_, String> {
        let outcome = match metadata.get(&format!("{i}.error")) {
            Some(message) => Outcome::refused(message.clone()),
            None => Outcome::Done(case.outputs.iter().map(|name| tensor(i, name, None)).collect::<Result<_, _>>()?),
        };
        Ok(CallResult { outcome, cache: state(i, "cache", &case.cache)?, scale: state(i, "scale", &case.scale)? })
    };
    let mut results = Vec::new();
    for i in 0..case.steps.len() {
        if let Some(reason) = metadata.get(&format!("{i}.unsupported")) {
            results.push(CallResult::unsupported(reason.clone()));
            break;
        }
        results.push(result(i)?);
    }
    Ok(results)
}

/// The shape of the bytes of int4 elements, two in each; none if a byte has elements of two rows.
fn packed_shape(shape: &[usize]) -> Option<Vec<usize>> {
    let (last, axes) = shape.split_last()?;
    (last % 2 == 0).then(|| [axes, &[last / 2]].concat())
}
