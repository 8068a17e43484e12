//! Reads cases from their folders.

use std::collections::BTreeMap;

use kvcache_schema::CacheAttentionAttributes;

use super::case::{Case, Operator};
use crate::case::{After, Expected, Step};
use crate::case_files::{CaseFiles, Cause};
use crate::files::readers;
use crate::read::{CaseFile, TypeName};

readers!("attention_cases", read_case);

fn read_case(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    let (file, tensors) = CaseFile::read(files)?;
    let name = file.operator.as_deref().unwrap_or_default();
    let operator = Operator::ALL.into_iter().find(|operator| operator.name() == name);
    let operator = operator.ok_or_else(|| Cause::Operator(name.to_owned()))?;
    // A case has the tensors of the types that it names.
    let (t1, t2, t3) = (file.given(TypeName::T1)?, file.element(TypeName::T2)?, file.element(TypeName::T3)?);
    let cache = |name: &str| t2.map(|_| tensors.get(name)).transpose();
    let scale = |name: &str| t3.map(|_| tensors.get(name)).transpose();
    let (rules, attributes) = (file.rules(operator.page())?, file.attributes(CacheAttentionAttributes::set)?);
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
        rules,
        operator,
        attributes,
        t1,
        cache: cache("cache")?,
        scale: scale("scale")?,
        steps: steps.collect::<Result<_, Cause>>()?,
    })
}
