//! A case: a node, its state, and calls with the expected results; how it is read, and the suite that it is of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvcache_schema::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, ElementType, multi_head_attention,
    multi_head_cache_attention,
};

use crate::case::{After, Expected, NamedInputs, NanRule, TOLERANCES, UNROUNDED, UNROUNDED_TOLERANCES};
use crate::difference::{Indices, Location, of_token, output};
use crate::files::{CaseFiles, Cause, readers};
use crate::oracle::indices;
use crate::read::{CaseFile, TypeName, batch, head_sizes, in_cache};
use crate::rules::OperatorPage;
use crate::suite::{State, Suite, fields_of_case};
use crate::tensor::Tensor;

/// The operator of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Packed keys and values; a case has no cache.
    MultiHeadAttention,
    /// Keys and values in a cache.
    MultiHeadCacheAttention,
}

impl Operator {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MultiHeadAttention, Self::MultiHeadCacheAttention];

    /// The operator's name in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MultiHeadAttention => multi_head_attention::NAME,
            Self::MultiHeadCacheAttention => multi_head_cache_attention::NAME,
        }
    }

    /// The page that states its rules.
    pub const fn page(self) -> OperatorPage {
        match self {
            Self::MultiHeadAttention => OperatorPage::MultiHeadAttention,
            Self::MultiHeadCacheAttention => OperatorPage::MultiHeadCacheAttention,
        }
    }

    /// The names of its inputs, by position.
    pub const fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::MultiHeadAttention => &multi_head_attention::INPUTS,
            Self::MultiHeadCacheAttention => &multi_head_cache_attention::INPUTS,
        }
    }
}

/// A node with its state, and calls that are made one after the other.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name of its folder.
    pub name: String,
    /// Its folder; that of a case in the library (the feature `embedded`) is a mere name, and begins with `embedded:`.
    pub folder: PathBuf,
    /// What it tests, in words.
    pub about: String,
    /// The rules of the operator's page that it proves, by their [ids](crate::Rule::id).
    pub rules: Vec<String>,
    /// The operator.
    pub operator: Operator,
    /// The attributes of the node; those of the cache are not used by [`Operator::MultiHeadAttention`].
    pub attributes: CacheAttentionAttributes,
    /// The type of `query`, of the keys and values, and of the output.
    pub t1: ElementType,
    /// `cache` before the first call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` before the first call, if given.
    pub scale: Option<Tensor>,
    /// Whether its calls give `attention_mass`, an optional output.
    pub has_mass: bool,
    /// The calls.
    pub steps: Vec<Step>,
}

/// One call.
pub type Step = crate::Step<Inputs>;

/// What a call is given but `cache` and `scale`, by the names of the operator's inputs.
pub type Inputs = BTreeMap<&'static str, Tensor>;

impl Step {
    /// The input called `name`.
    ///
    /// # Panics
    /// If the call is not given such an input. All have all, but for `attn_mask`.
    pub fn input(&self, name: &str) -> &Tensor {
        self.inputs.get(name).unwrap_or_else(|| panic!("the call has no {name}"))
    }
}

impl NamedInputs for Inputs {
    fn named(&self) -> Vec<(&'static str, &Tensor)> {
        self.iter().map(|(name, tensor)| (*name, tensor)).collect()
    }
}

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
    let outputs = match &file.outputs {
        None => &Case::OUTPUTS[..1],
        Some(names) if *names == Case::OUTPUTS => Case::OUTPUTS,
        Some(names) => return Err(Cause::Outputs(names.clone())),
    };
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
        let all = |names: [&str; 2]| names[..outputs.len()].iter().map(|name| tensor(name)).collect::<Result<_, _>>();
        let unrounded = match is_given(UNROUNDED[0]) {
            true => Some([all(UNROUNDED)?, all(UNROUNDED_TOLERANCES)?]),
            false => None,
        };
        let expected = match step.error {
            Some(kind) => Expected::Refusal { kind, mentions: step.mentions },
            None => Expected::Success(Box::new(After {
                outputs: outputs.iter().map(|name| tensor(name)).collect::<Result<_, _>>()?,
                tolerance: all(TOLERANCES)?,
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
        has_mass: outputs.len() > 1,
        steps: steps.collect::<Result<_, Cause>>()?,
    })
}

impl Suite for Case {
    const NAME: &'static str = "attention";
    const OUTPUTS: &'static [&'static str] = &[multi_head_attention::OUTPUTS[0], multi_head_attention::MASS];

    fields_of_case!();

    fn outputs(&self) -> &'static [&'static str] {
        &Self::OUTPUTS[..1 + usize::from(self.has_mass)]
    }

    fn page(&self) -> OperatorPage {
        self.operator.page()
    }

    fn types(&self) -> BTreeMap<&'static str, ElementType> {
        let t2 = self.cache.as_ref().map(|cache| ("T2", cache.element()));
        let t3 = self.scale.as_ref().map(|scale| ("T3", scale.element()));
        [("T1", self.t1)].into_iter().chain(t2).chain(t3).collect()
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        let CacheAttentionAttributes { attention, cache } = &self.attributes;
        let of_attention = AttentionAttributes::SPEC.iter().map(|spec| (spec.name, spec.value(attention)));
        let of_cache = Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(cache)));
        let has_cache = self.operator == Operator::MultiHeadCacheAttention;
        let of_cache = of_cache.filter(|(name, _)| has_cache && *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE);
        of_attention.chain(of_cache).collect()
    }

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        let key = match self.operator {
            Operator::MultiHeadAttention => "key",
            Operator::MultiHeadCacheAttention => "current_key",
        };
        let input = |name: &str| self.steps.first().and_then(|step| step.inputs.get(name));
        let heads = input(key).into_iter().flat_map(head_sizes).filter(|(name, _)| *name == "cache_heads");
        let batch = input("kvstarts").and_then(batch).map(|batch| ("batch", batch));
        batch.into_iter().chain(heads).chain([(multi_head_attention::MASS, self.has_mass.into())]).collect()
    }

    fn nan(&self) -> NanRule {
        NanRule::Exact
    }

    fn state(&self) -> State<'_> {
        [self.cache.as_ref(), self.scale.as_ref()]
    }

    fn locate(&self, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        let step = &self.steps[call];
        let starts = |name: &str| step.inputs.get(name).map(indices);
        if name == "attn_output" {
            let AttentionAttributes { num_heads, num_kv_heads, .. } = self.attributes.attention;
            let group = if num_kv_heads == 0 { 1 } else { num_heads.checked_div(num_kv_heads)? };
            let (seqstarts, kvstarts) = (starts("seqstarts")?, starts("kvstarts")?);
            // The queries are the last tokens of their sequence.
            let token = |row: &[usize]| {
                let (sequence, query) = of_token(&seqstarts, *row.first()?)?;
                let length = |starts: &[i64]| starts.get(sequence + 1)?.checked_sub(*starts.get(sequence)?);
                let past = length(&kvstarts)?.checked_sub(length(&seqstarts)?)?;
                Some((sequence, usize::try_from(past).ok()?.checked_add(query)?))
            };
            return output(tensor, index, usize::try_from(group).ok()?, token).map(Location::Output);
        }
        if name == multi_head_attention::MASS {
            return None; // the coordinates say it: query head and key
        }
        let indices = Indices {
            seqstarts: step.inputs.get("seqstarts")?,
            kvstarts: step.inputs.get("kvstarts")?,
            cachestarts: step.inputs.get("cachestarts")?,
        };
        in_cache(&self.attributes.cache, indices, name == "scale", tensor, index)
    }
}
