//! Reads cases from their files.

use std::collections::BTreeMap;
use std::path::Path;

use kvcache_schema::{Attributes, ElementType, static_key_value_cache};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::case::{After, Case, Expected, NanRule, Step, StepInputs, Types};
use crate::case_files::{CaseFiles, Cause, ReadError};
use crate::files::{committed, read_folders};
use crate::rules::{OperatorPage, rule};
use crate::tensor::Tensor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    about: String,
    rules: Vec<String>,
    /// Where it is not that of dynamic batching.
    domain: Option<String>,
    types: TypesFile,
    #[serde(default)]
    attributes: BTreeMap<String, i64>,
    #[serde(default)]
    int4: BTreeMap<String, Vec<usize>>,
    compare: Option<CompareFile>,
    steps: Vec<StepFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypesFile {
    #[serde(rename = "T1")]
    t1: String,
    #[serde(rename = "T2")]
    t2: String,
    #[serde(rename = "T3")]
    t3: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompareFile {
    nan: NanFile,
    #[serde(rename = "why")]
    _why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum NanFile {
    Any,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepFile {
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) mentions: Vec<String>,
}

/// The cases of this suite, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn cases() -> Result<Vec<Case>, ReadError> {
    committed("cases", read)
}

/// The cases in the subfolders of `folder`, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>, ReadError> {
    read_folders(folder, read)
}

/// The case of these files.
fn read(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    read_case(files, OperatorPage::KeyValueCache, Attributes::set, |tensor| {
        Ok(StepInputs {
            current_key: tensor("current_key")?,
            current_value: tensor("current_value")?,
            seqstarts: tensor("seqstarts")?,
            kvstarts: tensor("kvstarts")?,
            cachestarts: tensor("cachestarts")?,
            start_pos: tensor("start_pos")?,
            max_seqlen: tensor("max_seqlen")?,
            max_kvlen: tensor("max_kvlen")?,
        })
    })
}

/// The case of these files, of the operator of a page. `set` sets an attribute by its
/// name, if there is one; `inputs` makes a call's inputs from what gives them by name.
pub(crate) fn read_case<A: Default, I>(
    files: &CaseFiles<'_>,
    page: OperatorPage,
    set: impl Fn(&mut A, &str, i64) -> bool,
    inputs: impl Fn(&dyn Fn(&str) -> Result<Tensor, Cause>) -> Result<I, Cause>,
) -> Result<Case<A, I>, Cause> {
    let file: CaseFile = serde_yaml::from_slice(&files.yaml)?;
    if file.steps.is_empty() {
        return Err(Cause::NoSteps);
    }
    // A case of dynamic batching leaves its domain out.
    let domain = (page == OperatorPage::StaticKeyValueCache).then_some(static_key_value_cache::DOMAINS[0]);
    if file.domain.as_deref() != domain {
        return Err(Cause::Domain { got: file.domain, expected: domain });
    }
    let tensors = Tensors { file: SafeTensors::deserialize(&files.tensors)?, int4: &file.int4 };
    let mut attributes = A::default();
    for (name, &value) in &file.attributes {
        if !set(&mut attributes, name, value) {
            return Err(Cause::Attribute(name.clone()));
        }
    }
    let t3 = file.types.t3.as_deref().map(element).transpose()?;
    let scale = |name: &str| t3.map(|_| tensors.get(name)).transpose();
    let steps = file.steps.into_iter().enumerate().map(|(i, step)| {
        let tensor = |name: &str| tensors.get(&format!("{i}.{name}"));
        let inputs = inputs(&tensor)?;
        let expected = match step.error {
            Some(kind) => Expected::Refusal { kind, mentions: step.mentions },
            None => Expected::Success(Box::new(After {
                outputs: vec![tensor("key")?, tensor("value")?],
                tolerance: None,
                unrounded: None,
                cache: Some(tensor("cache")?),
                scale: scale(&format!("{i}.scale"))?,
            })),
        };
        Ok(Step { inputs, expected })
    });
    Ok(Case {
        name: files.name(),
        folder: files.folder.clone(),
        about: file.about,
        rules: known_rules(page, file.rules)?,
        types: Types { t1: element(&file.types.t1)?, t2: element(&file.types.t2)?, t3 },
        attributes,
        nan: file.compare.map_or(NanRule::Exact, |compare| match compare.nan {
            NanFile::Any => NanRule::Any,
        }),
        cache: tensors.get("cache")?,
        scale: scale("scale")?,
        steps: steps.collect::<Result<_, Cause>>()?,
    })
}

/// The rules that a case names, all of which the page must state.
pub(crate) fn known_rules(page: OperatorPage, ids: Vec<String>) -> Result<Vec<String>, Cause> {
    match ids.iter().find(|id| rule(page, id).is_none()) {
        Some(id) => Err(Cause::Rule { id: id.clone(), page: page.name() }),
        None => Ok(ids),
    }
}

pub(crate) fn element(name: &str) -> Result<ElementType, Cause> {
    ElementType::from_name(name).ok_or_else(|| Cause::Type(name.to_owned()))
}

/// The tensors of a file, some of which are packed int4 with a logical shape that the case gives.
pub(crate) struct Tensors<'a> {
    pub(crate) file: SafeTensors<'a>,
    pub(crate) int4: &'a BTreeMap<String, Vec<usize>>,
}

impl Tensors<'_> {
    pub(crate) fn get(&self, name: &str) -> Result<Tensor, Cause> {
        let view = self.file.tensor(name)?;
        let logical = name.rsplit('.').next().and_then(|base| self.int4.get(base));
        read_tensor(&view, logical).ok_or_else(|| Cause::Tensor {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
        })
    }
}

/// A tensor of a file; with a logical shape it is packed int4.
pub(crate) fn read_tensor(view: &safetensors::tensor::TensorView<'_>, int4: Option<&Vec<usize>>) -> Option<Tensor> {
    let (element, shape) = match (view.dtype(), int4) {
        (Dtype::U8, Some(shape)) => (ElementType::Int4, shape.as_slice()),
        (Dtype::F32, None) => (ElementType::Float32, view.shape()),
        (Dtype::F16, None) => (ElementType::Float16, view.shape()),
        (Dtype::I8, None) => (ElementType::Int8, view.shape()),
        (Dtype::I64, None) => (ElementType::Int64, view.shape()),
        _ => return None,
    };
    Tensor::new(element, shape.to_vec(), view.data())
}
