//! Writes cases as folders.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use kvcache_schema::{ElementType, static_key_value_cache};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;

use crate::case::{Case, Expected, NanRule};
use crate::read::{CaseInputs, dtype};
use crate::rules::OperatorPage;
use crate::suite::Suite;

#[derive(Serialize)]
struct CaseFile<'a> {
    about: &'a str,
    rules: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'static str>,
    types: BTreeMap<&'static str, &'static str>,
    attributes: BTreeMap<&'static str, i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    int4: BTreeMap<&'static str, &'a [usize]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<BTreeMap<&'static str, &'static str>>,
    steps: Vec<StepFile<'a>>,
}

#[derive(Serialize)]
struct StepFile<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    mentions: &'a [String],
}

/// Writes each case to a folder of its name in `folder`, and makes that its folder.
///
/// # Errors
/// If a folder cannot be made, or a file not be written.
pub fn write<A: Sync, I: CaseInputs<A>>(cases: &mut [Case<A, I>], folder: &Path) -> io::Result<()> {
    for case in cases {
        let folder = folder.join(&case.name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("case.yaml"), yaml(case)?)?;
        std::fs::write(folder.join("tensors.safetensors"), tensors(case)?)?;
        case.folder = folder;
    }
    Ok(())
}

fn yaml<A: Sync, I: CaseInputs<A>>(case: &Case<A, I>) -> io::Result<String> {
    let int4 = (case.types.t2 == ElementType::Int4).then_some(("cache", case.cache.shape()));
    let any = [("nan", "any"), ("why", "arithmetic makes NaN, with the machine's sign and payload")];
    let step = |expected| match expected {
        &Expected::Success(_) => StepFile { error: None, mentions: &[] },
        Expected::Refusal { kind, mentions } => StepFile { error: Some(kind), mentions },
    };
    let file = CaseFile {
        about: &case.about,
        rules: &case.rules,
        // A case of dynamic batching leaves its domain out.
        domain: (I::PAGE == OperatorPage::StaticKeyValueCache).then_some(static_key_value_cache::DOMAINS[0]),
        types: case.types().into_iter().map(|(name, element)| (name, element.name())).collect(),
        attributes: I::attributes(&case.attributes).into_iter().collect(),
        int4: int4.into_iter().collect(),
        compare: (case.nan == NanRule::Any).then(|| any.into_iter().collect()),
        steps: case.steps.iter().map(|case| step(&case.expected)).collect(),
    };
    serde_yaml::to_string(&file).map_err(io::Error::other)
}

fn tensors<A: Sync, I: CaseInputs<A>>(case: &Case<A, I>) -> io::Result<Vec<u8>> {
    let mut named = vec![("cache".to_owned(), &case.cache)];
    named.extend(case.scale.as_ref().map(|scale| ("scale".to_owned(), scale)));
    for (i, step) in case.steps.iter().enumerate() {
        named.extend(step.inputs.named().into_iter().map(|(name, tensor)| (format!("{i}.{name}"), tensor)));
        if let Expected::Success(after) = &step.expected {
            let after = after.named(Case::<A, I>::OUTPUTS).into_iter();
            named.extend(after.map(|(name, tensor)| (format!("{i}.{name}"), tensor)));
        }
    }
    let views = named.iter().map(|(name, tensor)| {
        // Two elements of int4 are a byte there, and a row of all of them.
        let (dtype, shape) = match dtype(tensor.element()) {
            Some(dtype) => (dtype, tensor.shape().to_vec()),
            None => (Dtype::U8, vec![tensor.bytes().len()]),
        };
        Ok((name.as_str(), TensorView::new(dtype, shape, tensor.bytes())?))
    });
    let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
    views.and_then(|views| safetensors::serialize(views, None)).map_err(io::Error::other)
}
