//! Reads cases from their files; those of both `KeyValueCache` as suites.

use std::collections::BTreeMap;

use kvcache_schema::{Attributes, ElementType, static_key_value_cache};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::case::{After, Case, Expected, NamedInputs, NanRule, Step, StepInputs, Types};
use crate::difference::{Indices, Location, Slot, cache, of_token, output};
use crate::files::{CaseFiles, Cause, readers};
use crate::oracle::indices;
use crate::rules::{OperatorPage, rule};
use crate::suite::{State, Suite, fields_of_case};
use crate::tensor::Tensor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseFile {
    pub(crate) about: String,
    pub(crate) rules: Vec<String>,
    /// Where it is one of attention.
    pub(crate) operator: Option<String>,
    /// Where it has others than it always has.
    pub(crate) outputs: Option<Vec<String>>,
    /// Where it is not that of dynamic batching.
    domain: Option<String>,
    pub(crate) types: BTreeMap<TypeName, String>,
    #[serde(default)]
    attributes: BTreeMap<String, i64>,
    #[serde(default)]
    int4: BTreeMap<String, Vec<usize>>,
    compare: Option<CompareFile>,
    pub(crate) steps: Vec<StepFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum TypeName {
    T1,
    T2,
    T3,
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

impl CaseFile {
    pub(crate) fn read<'a>(files: &'a CaseFiles<'_>) -> Result<(Self, Tensors<'a>), Cause> {
        let file: Self = serde_yaml::from_slice(&files.yaml)?;
        if file.steps.is_empty() {
            return Err(Cause::NoSteps);
        }
        let tensors = Tensors { file: SafeTensors::deserialize(&files.tensors)?, int4: file.int4.clone() };
        Ok((file, tensors))
    }

    pub(crate) fn attributes<A: Default>(&self, set: impl Fn(&mut A, &str, i64) -> bool) -> Result<A, Cause> {
        let mut attributes = A::default();
        match self.attributes.iter().find(|(name, value)| !set(&mut attributes, name, **value)) {
            Some((name, _)) => Err(Cause::Attribute(name.clone())),
            None => Ok(attributes),
        }
    }

    pub(crate) fn element(&self, name: TypeName) -> Result<Option<ElementType>, Cause> {
        let element = |name: &String| ElementType::from_name(name).ok_or_else(|| Cause::Type(name.clone()));
        self.types.get(&name).map(element).transpose()
    }

    /// One that every node has.
    pub(crate) fn given(&self, name: TypeName) -> Result<ElementType, Cause> {
        self.element(name)?.ok_or_else(|| Cause::Type(format!("{name:?}")))
    }

    /// The rules that it names, all of which the page must state.
    pub(crate) fn rules(&self, page: OperatorPage) -> Result<Vec<String>, Cause> {
        match self.rules.iter().find(|id| rule(page, id).is_none()) {
            Some(id) => Err(Cause::Rule { id: id.clone(), page: page.name() }),
            None => Ok(self.rules.clone()),
        }
    }
}

readers!("cases", read);

fn read(files: &CaseFiles<'_>) -> Result<Case, Cause> {
    read_case(files, OperatorPage::KeyValueCache, Attributes::set, |tensor| StepInputs::of(tensor))
}

/// The case of these files, of the operator of a page. `set` sets an attribute by its
/// name, if there is one; `inputs` makes a call's inputs from what gives them by name.
pub(crate) fn read_case<A: Default, I>(
    files: &CaseFiles<'_>,
    page: OperatorPage,
    set: impl Fn(&mut A, &str, i64) -> bool,
    inputs: impl Fn(&dyn Fn(&str) -> Result<Tensor, Cause>) -> Result<I, Cause>,
) -> Result<Case<A, I>, Cause> {
    let (file, tensors) = CaseFile::read(files)?;
    // A case of dynamic batching leaves its domain out.
    let domain = (page == OperatorPage::StaticKeyValueCache).then_some(static_key_value_cache::DOMAINS[0]);
    if file.domain.as_deref() != domain {
        return Err(Cause::Domain { got: file.domain, expected: domain });
    }
    if let Some(operator) = &file.operator {
        return Err(Cause::Operator(operator.clone()));
    }
    if let Some(names) = file.outputs {
        return Err(Cause::Outputs(names));
    }
    let types = Types { t1: file.given(TypeName::T1)?, t2: file.given(TypeName::T2)?, t3: file.element(TypeName::T3)? };
    let scale = |name: &str| types.t3.map(|_| tensors.get(name)).transpose();
    let (rules, attributes) = (file.rules(page)?, file.attributes(set)?);
    let steps = file.steps.into_iter().enumerate().map(|(i, step)| {
        let tensor = |name: &str| tensors.get(&format!("{i}.{name}"));
        let inputs = inputs(&tensor)?;
        let expected = match step.error {
            Some(kind) => Expected::Refusal { kind, mentions: step.mentions },
            None => Expected::Success(Box::new(After {
                outputs: vec![tensor("key")?, tensor("value")?],
                tolerance: Vec::new(),
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
        rules,
        types,
        attributes,
        nan: file.compare.map_or(NanRule::Exact, |compare| match compare.nan {
            NanFile::Any => NanRule::Any,
        }),
        cache: tensors.get("cache")?,
        scale: scale("scale")?,
        steps: steps.collect::<Result<_, Cause>>()?,
    })
}

/// The tensors of a file, some of which are packed int4 with a logical shape that the case gives.
pub(crate) struct Tensors<'a> {
    pub(crate) file: SafeTensors<'a>,
    int4: BTreeMap<String, Vec<usize>>,
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

/// The type of a file's tensor; none of int4, of which a file has the bytes.
pub(crate) fn dtype(element: ElementType) -> Option<Dtype> {
    match element {
        ElementType::Float32 => Some(Dtype::F32),
        ElementType::Float16 => Some(Dtype::F16),
        ElementType::BFloat16 => Some(Dtype::BF16),
        ElementType::Float8E4M3Fn => Some(Dtype::F8_E4M3),
        ElementType::Int8 => Some(Dtype::I8),
        ElementType::Int64 => Some(Dtype::I64),
        ElementType::Int4 => None,
    }
}

/// A tensor of a file; with a logical shape it is packed int4.
pub(crate) fn read_tensor(view: &safetensors::tensor::TensorView<'_>, int4: Option<&Vec<usize>>) -> Option<Tensor> {
    let (element, shape) = match int4 {
        Some(shape) if view.dtype() == Dtype::U8 => (ElementType::Int4, shape.as_slice()),
        Some(_) => return None,
        None => (ElementType::ALL.into_iter().find(|&known| dtype(known) == Some(view.dtype()))?, view.shape()),
    };
    Tensor::new(element, shape.to_vec(), view.data())
}

/// The inputs of a `KeyValueCache` with attributes `A`, and what its suite is.
pub trait CaseInputs<A>: NamedInputs + Sync {
    /// The suite's name.
    const SUITE: &'static str;

    /// The operator's page.
    const PAGE: OperatorPage;

    /// The attributes by their names.
    fn attributes(attributes: &A) -> Vec<(&'static str, i64)>;

    /// `current_key` and `current_value`.
    fn current(&self) -> [&Tensor; 2];

    /// The number of sequences, as far as shapes say.
    fn batch(&self) -> Option<i64>;

    /// What an element of a tensor of a call stands for.
    fn locate(&self, attributes: &A, name: &str, tensor: &Tensor, index: usize) -> Option<Location>;
}

impl<A: Sync, I: CaseInputs<A>> Suite for Case<A, I> {
    const NAME: &'static str = I::SUITE;
    const OUTPUTS: &'static [&'static str] = &["key", "value"];

    fields_of_case!();

    fn page(&self) -> OperatorPage {
        I::PAGE
    }

    fn types(&self) -> BTreeMap<&'static str, ElementType> {
        let t3 = self.types.t3.map(|t3| ("T3", t3));
        [("T1", self.types.t1), ("T2", self.types.t2)].into_iter().chain(t3).collect()
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        I::attributes(&self.attributes)
    }

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        let Some(step) = self.steps.first() else { return Vec::new() };
        let batch = step.inputs.batch().map(|batch| ("batch", batch));
        batch.into_iter().chain(head_sizes(step.inputs.current()[0])).collect()
    }

    fn nan(&self) -> NanRule {
        self.nan
    }

    fn state(&self) -> State<'_> {
        [Some(&self.cache), self.scale.as_ref()]
    }

    fn locate(&self, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        self.steps[call].inputs.locate(&self.attributes, name, tensor, index)
    }
}

impl CaseInputs<Attributes> for StepInputs {
    const SUITE: &'static str = "key-value-cache";
    const PAGE: OperatorPage = OperatorPage::KeyValueCache;

    fn attributes(attributes: &Attributes) -> Vec<(&'static str, i64)> {
        Attributes::SPEC.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
    }

    fn current(&self) -> [&Tensor; 2] {
        [&self.current_key, &self.current_value]
    }

    fn batch(&self) -> Option<i64> {
        batch(&self.kvstarts)
    }

    fn locate(&self, attributes: &Attributes, name: &str, tensor: &Tensor, index: usize) -> Option<Location> {
        if name == "key" || name == "value" {
            let repeat = usize::try_from(attributes.num_repeat).ok()?;
            let kvstarts = indices(&self.kvstarts);
            return output(tensor, index, repeat, |row| of_token(&kvstarts, *row.first()?)).map(Location::Output);
        }
        let indices = Indices { seqstarts: &self.seqstarts, kvstarts: &self.kvstarts, cachestarts: &self.cachestarts };
        in_cache(attributes, indices, name == "scale", tensor, index)
    }
}

/// What an element of `cache` or `scale` stands for, in dynamic batching.
pub(crate) fn in_cache(
    attributes: &Attributes,
    indices: Indices<'_>,
    is_scale: bool,
    tensor: &Tensor,
    index: usize,
) -> Option<Location> {
    let mut location = cache(attributes.cache_layout, tensor, index, is_scale)?;
    // The tokens of a call have slots in its own layer alone.
    if let (Slot::Number(slot), true) = (location.slot, i64::try_from(location.layer) == Ok(attributes.layer_idx)) {
        location.owners = indices.owners(attributes.cache_mode, attributes.page_size, slot);
    }
    Some(Location::Cache(location))
}

/// The number of sequences, by their starts.
pub(crate) fn batch(kvstarts: &Tensor) -> Option<i64> {
    let &[starts] = kvstarts.shape() else { return None };
    i64::try_from(starts).ok()?.checked_sub(1)
}

/// The sizes of the two innermost axes of a `current_key`.
pub(crate) fn head_sizes(current_key: &Tensor) -> impl Iterator<Item = (&'static str, i64)> + use<> {
    let sizes = match current_key.shape() {
        &[.., heads, head_dim] => vec![("cache_heads", heads), ("head_dim", head_dim)],
        _ => Vec::new(),
    };
    sizes.into_iter().filter_map(|(name, size)| Some((name, i64::try_from(size).ok()?)))
}
