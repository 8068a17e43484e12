//! Writes cases as folders.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use kvcache_schema::{Attributes, ElementType, StaticAttributes, static_key_value_cache};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Serialize;

use crate::case::{Case, Expected, NamedInputs, NanRule, StepInputs};
use crate::oracle::Inputs;
use crate::static_batching;

/// Inputs that can be written, those of an operator with attributes `A`.
pub trait Written<A>: Inputs<A> + NamedInputs {
    /// The operator's domain, where it is not that of dynamic batching.
    const DOMAIN: Option<&'static str>;

    /// The attributes by name.
    fn attributes(attributes: &A) -> BTreeMap<&'static str, i64>;
}

impl Written<Attributes> for StepInputs {
    const DOMAIN: Option<&'static str> = None;

    fn attributes(attributes: &Attributes) -> BTreeMap<&'static str, i64> {
        Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }
}

impl Written<StaticAttributes> for static_batching::StepInputs {
    const DOMAIN: Option<&'static str> = Some(static_key_value_cache::DOMAINS[0]);

    fn attributes(attributes: &StaticAttributes) -> BTreeMap<&'static str, i64> {
        StaticAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }
}

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
pub fn write<A, I: Written<A>>(cases: &mut [Case<A, I>], folder: &Path) -> io::Result<()> {
    for case in cases {
        let folder = folder.join(&case.name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("case.yaml"), yaml(case)?)?;
        std::fs::write(folder.join("tensors.safetensors"), tensors(case)?)?;
        case.folder = folder;
    }
    Ok(())
}

fn yaml<A, I: Written<A>>(case: &Case<A, I>) -> io::Result<String> {
    let types = [("T1", Some(case.types.t1)), ("T2", Some(case.types.t2)), ("T3", case.types.t3)];
    let int4 = (case.types.t2 == ElementType::Int4).then_some(("cache", case.cache.shape()));
    let any = [("nan", "any"), ("why", "arithmetic makes NaN, with the machine's sign and payload")];
    let step = |expected| match expected {
        &Expected::Success(_) => StepFile { error: None, mentions: &[] },
        Expected::Refusal { kind, mentions } => StepFile { error: Some(kind), mentions },
    };
    let file = CaseFile {
        about: &case.about,
        rules: &case.rules,
        domain: I::DOMAIN,
        types: types.into_iter().filter_map(|(name, element)| Some((name, element?.name()))).collect(),
        attributes: I::attributes(&case.attributes),
        int4: int4.into_iter().collect(),
        compare: (case.nan == NanRule::Any).then(|| any.into_iter().collect()),
        steps: case.steps.iter().map(|case| step(&case.expected)).collect(),
    };
    serde_yaml::to_string(&file).map_err(io::Error::other)
}

fn tensors<A, I: Written<A>>(case: &Case<A, I>) -> io::Result<Vec<u8>> {
    let mut named = vec![("cache".to_owned(), &case.cache)];
    named.extend(case.scale.as_ref().map(|scale| ("scale".to_owned(), scale)));
    for (i, step) in case.steps.iter().enumerate() {
        named.extend(step.inputs.named().into_iter().map(|(name, tensor)| (format!("{i}.{name}"), tensor)));
        if let Expected::Success(after) = &step.expected {
            let outputs = [("key", &after.outputs.key), ("value", &after.outputs.value), ("cache", &after.cache)];
            let scale = after.scale.as_ref().map(|scale| ("scale", scale));
            named.extend(outputs.into_iter().chain(scale).map(|(name, tensor)| (format!("{i}.{name}"), tensor)));
        }
    }
    let views = named.iter().map(|(name, tensor)| {
        // Two elements of int4 are a byte there, and a row of all of them.
        let (dtype, shape) = match tensor.element() {
            ElementType::Float32 => (Dtype::F32, tensor.shape().to_vec()),
            ElementType::Float16 => (Dtype::F16, tensor.shape().to_vec()),
            ElementType::Int8 => (Dtype::I8, tensor.shape().to_vec()),
            ElementType::Int64 => (Dtype::I64, tensor.shape().to_vec()),
            ElementType::Int4 => (Dtype::U8, vec![tensor.bytes().len()]),
        };
        Ok((name.as_str(), TensorView::new(dtype, shape, tensor.bytes())?))
    });
    let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
    views.and_then(|views| safetensors::serialize(views, None)).map_err(io::Error::other)
}
