//! Reads cases from their two files, which lie in a folder or, with the feature `embedded`, in this library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kvcache_schema::{ElementType, static_key_value_cache};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::case::{AFTER, Case, Expected, Operator, Step, Suite, Tensors};
use crate::rules::rule;
use crate::tensor::Tensor;

pub(crate) const YAML: &str = "case.yaml";
pub(crate) const TENSORS: &str = "tensors.safetensors";

/// The golden cases of a suite, by name: those in this library or, without the feature, those beside its source.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn cases(suite: Suite) -> Result<Vec<Case>, ReadError> {
    #[cfg(feature = "embedded")]
    return embedded::cases(suite);
    #[cfg(not(feature = "embedded"))]
    read_cases(&Path::new(kvcache_golden::FOLDER).join(suite.folder()))
}

/// The cases in the subfolders of `folder`, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>, ReadError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|error| Cause::from(error).at(folder))?;
    let mut folders: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    folders.sort();
    if folders.is_empty() {
        return Err(Cause::NoCase.at(folder));
    }
    let read = |folder: &PathBuf| {
        let (yaml, tensors) = (fs::read(folder.join(YAML))?, fs::read(folder.join(TENSORS))?);
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Case { folder: folder.clone(), ..case(name, &yaml, &tensors)? })
    };
    folders.iter().map(|folder| read(folder).map_err(|cause: Cause| cause.at(folder))).collect()
}

/// A folder that cannot be read as a case.
#[derive(Debug, Error)]
#[error("golden case {}: {cause}", path.display())]
pub struct ReadError {
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug, Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("case.yaml: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("tensors.safetensors: {0}")]
    Tensors(#[from] safetensors::SafeTensorError),
    #[error("no case in the folder")]
    NoCase,
    #[error("case.yaml has no steps: nothing would be run")]
    NoSteps,
    #[error("no attribute is called {0}, or it is of another type")]
    Attribute(String),
    #[error("no element type is called {0}")]
    Type(String),
    #[error("{operator} with the types {given:?}: T1 is one of every case, T2 and T3 are of a cache")]
    Types { operator: &'static str, given: Vec<String> },
    #[error("{page} has no rule {id}")]
    Rule { id: String, page: &'static str },
    #[error("no operator is called {operator:?} in the domain {domain:?}")]
    Operator { operator: Option<String>, domain: Option<String> },
    #[error("outputs are {0:?}, which no case of the operator has")]
    Outputs(Vec<String>),
    #[error("tensor {name} is {dtype:?} of shape {shape:?}, which no case can hold")]
    Tensor { name: String, dtype: Dtype, shape: Vec<usize> },
    #[error("{0} is not of float32 and its output's shape")]
    Tolerance(String),
}

impl Cause {
    /// Says of which folder this is the cause.
    fn at(self, path: &Path) -> ReadError {
        ReadError { path: path.to_owned(), cause: self }
    }
}

/// The contents of `case.yaml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseFile {
    pub(crate) about: String,
    pub(crate) rules: Vec<String>,
    /// The operator, if it is one of attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    /// The outputs, if they are others than the required ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Vec<String>>,
    /// The domain, if it is static batching's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    pub(crate) types: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) attributes: BTreeMap<String, serde_yaml::Number>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) int4: BTreeMap<String, Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compare: Option<CompareFile>,
    pub(crate) steps: Vec<StepFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompareFile {
    pub(crate) nan: NanFile,
    pub(crate) why: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NanFile {
    Any,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mentions: Vec<String>,
}

impl CaseFile {
    fn operator(&self) -> Result<Operator, Cause> {
        let named = |operator: &Operator| {
            let of_static_batching = self.domain.as_deref() == Some(static_key_value_cache::DOMAINS[0]);
            match (operator.suite(), self.operator.as_deref()) {
                (Suite::KeyValueCache, None) => self.domain.is_none(),
                (Suite::Static, None) => of_static_batching,
                (Suite::Attention, Some(name)) => self.domain.is_none() && name == operator.name(),
                _ => false,
            }
        };
        let unknown = || Cause::Operator { operator: self.operator.clone(), domain: self.domain.clone() };
        Operator::ALL.into_iter().find(named).ok_or_else(unknown)
    }

    fn outputs(&self, operator: Operator) -> Result<&'static [&'static str], Cause> {
        let all = operator.outputs();
        match &self.outputs {
            None if operator.suite() == Suite::Attention => Ok(&all[..1]),
            None => Ok(all),
            Some(names) if operator.suite() == Suite::Attention && *names == all => Ok(all),
            Some(names) => Err(Cause::Outputs(names.clone())),
        }
    }
}

/// The case of these files.
fn case(name: String, yaml: &[u8], tensors: &[u8]) -> Result<Case, Cause> {
    let file: CaseFile = serde_yaml::from_slice(yaml)?;
    let operator = file.operator()?;
    if file.steps.is_empty() {
        return Err(Cause::NoSteps);
    }
    if let Some(id) = file.rules.iter().find(|id| rule(operator, id).is_none()) {
        return Err(Cause::Rule { id: id.clone(), page: operator.name() });
    }
    if let Some(name) = file.types.values().find(|name| ElementType::from_name(name).is_none()) {
        return Err(Cause::Type(name.clone()));
    }
    let (has_cache, has) = (operator != Operator::MultiHeadAttention, |name| file.types.contains_key(name));
    if !has("T1") || has("T2") != has_cache || has("T3") && !has_cache {
        return Err(Cause::Types { operator: operator.name(), given: file.types.into_keys().collect() });
    }
    let (mut attributes, mut floats) = (operator.attributes(), operator.floats());
    for (name, value) in &file.attributes {
        let unknown = || Cause::Attribute(name.clone());
        match floats.get_mut(name.as_str()) {
            Some(float) => *float = value.as_f64().ok_or_else(unknown)? as f32,
            None => *attributes.get_mut(name.as_str()).ok_or_else(unknown)? = value.as_i64().ok_or_else(unknown)?,
        }
    }
    let outputs = file.outputs(operator)?;
    let tensors = SafeTensors::deserialize(tensors)?;
    let tensor = |name: &str| {
        let view = tensors.tensor(name)?;
        let logical = name.rsplit('.').next().and_then(|base| file.int4.get(base));
        let unreadable = || Cause::Tensor { name: name.to_owned(), dtype: view.dtype(), shape: view.shape().to_vec() };
        read_tensor(&view, logical).ok_or_else(unreadable)
    };
    // The state before the first call; calls leave one where there is one.
    let state = |name: &str, parameter: &str| file.types.get(parameter).map(|_| tensor(name)).transpose();
    let (cache, scale) = (state("cache", "T2")?, state("scale", "T3")?);
    let is_given = |name: &str| tensors.tensor(name).is_ok();
    let step = |(i, step): (usize, &StepFile)| {
        let named = |name: &&'static str| Ok::<_, Cause>((*name, tensor(&format!("{i}.{name}"))?));
        let is_there = |name: &&str| !["attn_mask", "head_sink"].contains(name) || is_given(&format!("{i}.{name}"));
        let inputs = operator.inputs().filter(is_there).map(|name| named(&name)).collect::<Result<Tensors, _>>()?;
        let expected = match &step.error {
            Some(kind) => Expected::Refusal { kind: kind.clone(), mentions: step.mentions.clone() },
            None => {
                let is_required = |name: &&&str| match **name {
                    "cache" => cache.is_some(),
                    "scale" => scale.is_some(),
                    "tolerance" => operator.suite() == Suite::Attention,
                    name => is_given(&format!("{i}.{name}")),
                };
                let names = outputs.iter().chain(AFTER.iter().filter(is_required));
                let after = names.map(named).collect::<Result<_, _>>()?;
                match misshapen_tolerance(&after) {
                    Some(name) => return Err(Cause::Tolerance(format!("{i}.{name}"))),
                    None => Expected::Success(after),
                }
            }
        };
        Ok(Step { inputs, expected })
    };
    let steps = file.steps.iter().enumerate().map(step).collect::<Result<_, Cause>>()?;
    Ok(Case {
        name,
        folder: PathBuf::new(),
        about: file.about,
        rules: file.rules,
        operator,
        attributes,
        floats,
        outputs,
        any_nan: file.compare.is_some(),
        cache,
        scale,
        steps,
    })
}

/// Outputs with tolerances, and these, as files call them.
const TOLERANCES: [(&str, &str); 4] = [
    ("attn_output", "tolerance"),
    ("attention_mass", "mass_tolerance"),
    ("unrounded.attn_output", "unrounded.tolerance"),
    ("unrounded.attention_mass", "unrounded.mass_tolerance"),
];

/// The name of a tolerance, if there is one, which does not say a number for each element of its output.
fn misshapen_tolerance(after: &Tensors) -> Option<&'static str> {
    let is_misshapen = |(output, tolerance): &(&str, &str)| match (after.get(output), after.get(tolerance)) {
        (output, Some(tolerance)) => {
            tolerance.element() != ElementType::Float32 || output.map(Tensor::shape) != Some(tolerance.shape())
        }
        (_, None) => false,
    };
    TOLERANCES.into_iter().find(is_misshapen).map(|(_, tolerance)| tolerance)
}

/// The type of a file's tensor; none of int4, of which a file has the bytes.
pub(crate) fn dtype(element: ElementType) -> Option<Dtype> {
    match element {
        ElementType::Float32 => Some(Dtype::F32),
        ElementType::Float16 => Some(Dtype::F16),
        ElementType::BFloat16 => Some(Dtype::BF16),
        ElementType::Float8E4M3Fn => Some(Dtype::F8_E4M3),
        ElementType::Int8 => Some(Dtype::I8),
        ElementType::Int64 => Some(Dtype::I64),
        ElementType::Int4 | ElementType::UInt8 => None,
    }
}

/// A tensor of a file; with a logical shape it is packed int4.
pub(crate) fn read_tensor(view: &TensorView<'_>, int4: Option<&Vec<usize>>) -> Option<Tensor> {
    let (element, shape) = match int4 {
        Some(shape) if view.dtype() == Dtype::U8 => (ElementType::Int4, shape.as_slice()),
        Some(_) => return None,
        None => (ElementType::ALL.into_iter().find(|&known| dtype(known) == Some(view.dtype()))?, view.shape()),
    };
    Tensor::new(element, shape.to_vec(), view.data())
}

/// The cases in the library: the archives of `kvcache-golden`.
#[cfg(feature = "embedded")]
pub(crate) mod embedded {
    use std::collections::BTreeSet;
    use std::io::Read;
    use std::path::Path;
    use std::sync::LazyLock;

    use flate2::read::ZlibDecoder;
    use safetensors::SafeTensors;

    use super::{Case, Cause, ReadError, Suite, TENSORS, YAML, case};

    /// What the folders of these cases begin with. There is no such folder.
    const ROOT: &str = "embedded:";

    pub(super) fn cases(suite: Suite) -> Result<Vec<Case>, ReadError> {
        let root = Path::new(ROOT).join(suite.folder());
        let archive = archive(suite);
        let read = |name: &str| {
            let [yaml, tensors] = inflated(archive, name)?;
            Ok(Case { folder: root.join(name), ..case(name.to_owned(), &yaml, &tensors)? })
        };
        let paths = archive.names();
        let names: BTreeSet<_> = paths.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
        names.into_iter().map(|name| read(name).map_err(|cause: Cause| cause.at(&root.join(name)))).collect()
    }

    /// The files of a case, [`YAML`] and [`TENSORS`], if it is in the library.
    pub(crate) fn files(case: &Case) -> Option<Result<[Vec<u8>; 2], Cause>> {
        case.folder.starts_with(ROOT).then(|| inflated(archive(case.operator.suite()), &case.name))
    }

    fn inflated(archive: &SafeTensors<'_>, case: &str) -> Result<[Vec<u8>; 2], Cause> {
        let file = |name: &str| {
            let mut bytes = Vec::new();
            ZlibDecoder::new(archive.tensor(&format!("{case}/{name}"))?.data()).read_to_end(&mut bytes)?;
            Ok::<_, Cause>(bytes)
        };
        Ok([file(YAML)?, file(TENSORS)?])
    }

    fn archive(suite: Suite) -> &'static SafeTensors<'static> {
        static ARCHIVES: LazyLock<[SafeTensors<'static>; 3]> = LazyLock::new(|| {
            kvcache_golden::ARCHIVES
                .map(|(_, bytes)| SafeTensors::deserialize(bytes).expect("an archive that was built"))
        });
        let at = kvcache_golden::ARCHIVES.iter().position(|(name, _)| *name == suite.folder());
        &ARCHIVES[at.expect("a suite has an archive")]
    }
}
