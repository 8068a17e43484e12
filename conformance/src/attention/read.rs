//! Reads cases from their folders.

use std::collections::BTreeMap;
use std::path::Path;

use kvcache_schema::CacheAttentionAttributes;
use safetensors::SafeTensors;
use serde::Deserialize;

use super::case::{Case, Operator};
use crate::case::{After, Expected, Step};
use crate::case_files::{CaseFiles, Cause, ReadError};
use crate::files::{committed, read_folders};
use crate::read::{StepFile, Tensors, element, known_rules};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    about: String,
    rules: Vec<String>,
    operator: String,
    types: TypesFile,
    attributes: BTreeMap<String, i64>,
    #[serde(default)]
    int4: BTreeMap<String, Vec<usize>>,
    steps: Vec<StepFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypesFile {
    #[serde(rename = "T1")]
    t1: String,
    #[serde(rename = "T2")]
    t2: Option<String>,
    #[serde(rename = "T3")]
    t3: Option<String>,
}

/// The cases of this suite, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn cases() -> Result<Vec<Case>, ReadError> {
    committed("attention_cases", read_case)
}

/// The cases in the folders of `folder`, by name.
///
/// # Errors
/// If there is none, or one cannot be read.
pub fn read_cases(folder: &Path) -> Result<Vec<Case>, ReadError> {
    read_folders(folder, read_case)
}

/// The case of these files.
fn read_case(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    let file: CaseFile = serde_yaml::from_slice(&files.yaml)?;
    if file.steps.is_empty() {
        return Err(Cause::NoSteps);
    }
    let tensors = Tensors { file: SafeTensors::deserialize(&files.tensors)?, int4: &file.int4 };
    let operator = Operator::ALL.into_iter().find(|operator| operator.name() == file.operator);
    let operator = operator.ok_or(Cause::Operator(file.operator))?;
    let mut attributes = CacheAttentionAttributes::default();
    for (name, &value) in &file.attributes {
        if !attributes.set(name, value) {
            return Err(Cause::Attribute(name.clone()));
        }
    }
    // A case has the tensors of the types that it names.
    let given = |type_name: &Option<String>, tensor: &str| match type_name {
        Some(type_name) => {
            element(type_name)?;
            tensors.get(tensor).map(Some)
        }
        None => Ok(None),
    };
    let cache = |name: &str| given(&file.types.t2, name);
    let scale = |name: &str| given(&file.types.t3, name);
    let steps = file.steps.into_iter().enumerate().map(|(i, step)| {
        let tensor = |name: &str| tensors.get(&format!("{i}.{name}"));
        let is_given = |name: &str| tensors.file.tensor(&format!("{i}.{name}")).is_ok();
        let mut inputs = BTreeMap::new();
        for &name in operator.inputs() {
            let left_out = name == "attn_mask" && !is_given(name);
            if !left_out && name != "cache" && name != "scale" {
                inputs.insert(name, tensor(name)?);
            }
        }
        let unrounded = match is_given("unrounded.attn_output") {
            true => Some([tensor("unrounded.attn_output")?, tensor("unrounded.tolerance")?]),
            false => None,
        };
        let expected = match step.error {
            Some(kind) => Expected::Refusal { kind, mentions: step.mentions },
            None => Expected::Success(Box::new(After {
                outputs: vec![tensor("attn_output")?],
                tolerance: Some(tensor("tolerance")?),
                unrounded,
                cache: cache(&format!("{i}.cache"))?,
                scale: scale(&format!("{i}.scale"))?,
            })),
        };
        Ok(Step { inputs, expected })
    });
    Ok(Case {
        name: files.name(),
        folder: files.folder.clone(),
        about: file.about,
        rules: known_rules(operator.page(), file.rules)?,
        operator,
        attributes,
        t1: element(&file.types.t1)?,
        cache: cache("cache")?,
        scale: scale("scale")?,
        steps: steps.collect::<Result<_, Cause>>()?,
    })
}
