//! A case: a node, its state, and calls with the expected results. One form for all operators: attributes, inputs and
//! outputs are maps by name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvcache_schema::{
    AttentionAttributes, AttributeSpec, Attributes, CacheAttentionAttributes, ElementType, OperatorKind, SCHEMA,
    StaticAttributes, multi_head_attention, multi_head_cache_attention, static_key_value_cache,
};

use crate::tensor::Tensor;

/// An operator, by the name of its page, `docs/NAME.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// `dynamic_batching.KeyValueCache`.
    KeyValueCache,
    /// `dynamic_batching.MultiHeadAttention`, which has no cache.
    MultiHeadAttention,
    /// `dynamic_batching.MultiHeadCacheAttention`.
    MultiHeadCacheAttention,
    /// `KeyValueCache` of static batching.
    StaticKeyValueCache,
}

impl Operator {
    /// All operators; one whose schema refers to another's comes later.
    pub const ALL: [Self; 4] =
        [Self::KeyValueCache, Self::MultiHeadAttention, Self::MultiHeadCacheAttention, Self::StaticKeyValueCache];

    /// The name of the operator's page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StaticKeyValueCache => "StaticKeyValueCache",
            other => other.op_type(),
        }
    }

    /// The operator as graphs know it.
    pub const fn kind(self) -> OperatorKind {
        match self {
            Self::KeyValueCache => OperatorKind::KeyValueCache,
            Self::MultiHeadAttention => OperatorKind::MultiHeadAttention,
            Self::MultiHeadCacheAttention => OperatorKind::MultiHeadCacheAttention,
            Self::StaticKeyValueCache => OperatorKind::StaticKeyValueCache,
        }
    }

    /// The operator's name in a graph.
    pub const fn op_type(self) -> &'static str {
        self.kind().name()
    }

    /// The suite of the operator's cases.
    pub const fn suite(self) -> Suite {
        match self {
            Self::KeyValueCache => Suite::KeyValueCache,
            Self::StaticKeyValueCache => Suite::Static,
            Self::MultiHeadAttention | Self::MultiHeadCacheAttention => Suite::Attention,
        }
    }

    pub(crate) const fn schema(self) -> &'static str {
        match self {
            Self::KeyValueCache => SCHEMA,
            Self::MultiHeadAttention => multi_head_attention::SCHEMA,
            Self::MultiHeadCacheAttention => multi_head_cache_attention::SCHEMA,
            Self::StaticKeyValueCache => static_key_value_cache::SCHEMA,
        }
    }

    /// The names of the operator's inputs other than `cache` and `scale`, the first of type T1.
    pub fn inputs(self) -> impl Iterator<Item = &'static str> {
        self.kind().inputs().iter().copied().filter(|name| !["cache", "scale"].contains(name))
    }

    /// The type of the first input of a call.
    pub(crate) fn t1(self, inputs: &Tensors) -> ElementType {
        let first = self.inputs().next().expect("an operator has inputs");
        inputs[first].element()
    }

    /// The names of all outputs; attention's last one is optional.
    pub(crate) const fn outputs(self) -> &'static [&'static str] {
        match self.suite() {
            Suite::Attention => &[multi_head_attention::OUTPUTS[0], multi_head_attention::MASS],
            _ => &kvcache_schema::OUTPUTS,
        }
    }

    /// The operator's float attributes with their defaults.
    pub fn floats(self) -> FloatValues {
        let specs: &[_] = if self.suite() == Suite::Attention { &AttentionAttributes::FLOATS } else { &[] };
        specs.iter().map(|spec| (spec.name, 0.0)).collect()
    }

    /// The operator's integer attributes with their defaults.
    pub fn attributes(self) -> AttributeValues {
        fn defaults<A>(specs: &[AttributeSpec<A>]) -> impl Iterator<Item = (&'static str, i64)> {
            specs.iter().map(|spec| (spec.name, spec.default))
        }
        match self {
            Self::KeyValueCache => defaults(&Attributes::SPEC).collect(),
            Self::StaticKeyValueCache => defaults(&StaticAttributes::SPEC).collect(),
            Self::MultiHeadAttention => defaults(&AttentionAttributes::SPEC).collect(),
            Self::MultiHeadCacheAttention => {
                let of_cache = defaults(&Attributes::SPEC);
                let of_cache = of_cache.filter(|(name, _)| *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE);
                defaults(&AttentionAttributes::SPEC).chain(of_cache).collect()
            }
        }
    }
}

/// The cases of a kind, which are in a folder of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// `KeyValueCache` of dynamic batching.
    KeyValueCache,
    /// `KeyValueCache` of static batching.
    Static,
    /// `MultiHeadAttention` and `MultiHeadCacheAttention`.
    Attention,
}

impl Suite {
    /// All suites.
    pub const ALL: [Self; 3] = [Self::KeyValueCache, Self::Static, Self::Attention];

    /// The suite's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KeyValueCache => "key-value-cache",
            Self::Static => "static",
            Self::Attention => "attention",
        }
    }

    /// The name of the folder of its golden cases.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::KeyValueCache => "cases",
            Self::Static => "static_cases",
            Self::Attention => "attention_cases",
        }
    }
}

/// Integer attributes by name.
pub type AttributeValues = BTreeMap<&'static str, i64>;

/// Float attributes by name.
pub type FloatValues = BTreeMap<&'static str, f32>;

/// Tensors by name.
pub type Tensors = BTreeMap<&'static str, Tensor>;

/// A node with its state, and calls that are made one after the other.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name of its folder.
    pub name: String,
    /// Its folder; a mere name that begins with `embedded:` if it is in this library (feature `embedded`), and empty if
    /// it is a random one.
    pub folder: PathBuf,
    /// What it tests, in words.
    pub about: String,
    /// The rules of the operator's page that it proves, by their [ids](crate::Rule::id).
    pub rules: Vec<String>,
    /// The operator.
    pub operator: Operator,
    /// All integer attributes of the operator.
    pub attributes: AttributeValues,
    /// All float attributes of the operator.
    pub floats: FloatValues,
    /// The names of the outputs that its calls give.
    pub outputs: &'static [&'static str],
    /// Whether any NaN equals any NaN of a float tensor: arithmetic makes them here, with the hardware's bits.
    pub any_nan: bool,
    /// `cache` before the first call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` before the first call, if given.
    pub scale: Option<Tensor>,
    /// The calls.
    pub steps: Vec<Step>,
}

/// One call of a case.
#[derive(Debug, Clone)]
pub struct Step {
    /// The inputs other than `cache` and `scale`.
    pub inputs: Tensors,
    /// What the call must do.
    pub expected: Expected,
}

/// What a call must do.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Give outputs and change the state: the tensors after the call, by the names that they have in files.
    ///
    /// Outputs of attention are float32 whatever T1 is. `tolerance` and `mass_tolerance` say how far each element may
    /// be from them; what is not finite must be so. Over a quantized cache, `unrounded.attn_output`,
    /// `unrounded.tolerance` and so on hold where products of code and scale are not rounded, if that differs: all of a
    /// call is near the ones or the others.
    Success(Tensors),
    /// Be refused, and leave the state as it was.
    Refusal {
        /// The kind of error.
        kind: String,
        /// What the message must contain.
        mentions: Vec<String>,
    },
}

/// The optional input that is a property of cases: 1 where a call has it, with elements.
pub(crate) const HEAD_SINK: &str = "head_sink";

/// The tensors after a call that succeeds, but for its outputs, as files call them.
pub(crate) const AFTER: [&str; 8] = [
    "cache",
    "scale",
    "tolerance",
    "mass_tolerance",
    "unrounded.attn_output",
    "unrounded.attention_mass",
    "unrounded.tolerance",
    "unrounded.mass_tolerance",
];

/// One call of a node, and the state before it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are what a call is given")]
pub struct Call {
    pub operator: Operator,
    pub attributes: AttributeValues,
    pub floats: FloatValues,
    pub inputs: Tensors,
    pub cache: Option<Tensor>,
    pub scale: Option<Tensor>,
}

impl Call {
    /// The type of the current keys, or of the query.
    pub fn t1(&self) -> ElementType {
        self.operator.t1(&self.inputs)
    }

    /// The cache.
    ///
    /// # Panics
    /// For a call of `MultiHeadAttention`, which has none.
    pub fn cache(&self) -> &Tensor {
        self.cache.as_ref().expect("the operator has a cache")
    }
}

impl Case {
    /// The type of the current keys of the first call, or of its query.
    pub fn t1(&self) -> ElementType {
        self.operator.t1(&self.steps[0].inputs)
    }

    /// The cache before the first call.
    ///
    /// # Panics
    /// For a case of `MultiHeadAttention`, which has none.
    pub fn cache(&self) -> &Tensor {
        self.cache.as_ref().expect("the operator has a cache")
    }

    /// Whether its calls give `attention_mass`.
    pub fn has_mass(&self) -> bool {
        self.outputs.contains(&multi_head_attention::MASS)
    }

    /// Whether all calls succeed.
    pub fn is_legal(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.expected, Expected::Success(_)))
    }

    /// Whether an output of a call has elements.
    pub(crate) fn gives_elements(&self) -> bool {
        let mut outputs = self.steps.iter().flat_map(|step| match &step.expected {
            Expected::Success(after) => self.outputs.iter().filter_map(|name| after.get(name)).collect(),
            Expected::Refusal { .. } => Vec::new(),
        });
        outputs.any(|output| !output.bytes().is_empty())
    }

    /// Takes away what messages must mention: no rule of the operators says how an error is worded.
    pub fn forget_messages(&mut self) {
        for step in &mut self.steps {
            if let Expected::Refusal { mentions, .. } = &mut step.expected {
                mentions.clear();
            }
        }
    }

    /// Call `i`, with the state that the calls before it leave.
    pub fn call(&self, i: usize) -> Call {
        let last = self.steps[..i].iter().rev().find_map(|step| match &step.expected {
            Expected::Success(after) => Some(after),
            Expected::Refusal { .. } => None,
        });
        let state = |name: &str, before: &Option<Tensor>| match last {
            Some(after) => after.get(name).cloned(),
            None => before.clone(),
        };
        Call {
            operator: self.operator,
            attributes: self.attributes.clone(),
            floats: self.floats.clone(),
            inputs: self.steps[i].inputs.clone(),
            cache: state("cache", &self.cache),
            scale: state("scale", &self.scale),
        }
    }

    /// The types `T1`, `T2` and `T3`, as far as the case has them.
    pub fn types(&self) -> BTreeMap<&'static str, ElementType> {
        let of_state = [("T2", &self.cache), ("T3", &self.scale)];
        let of_state = of_state.into_iter().filter_map(|(name, tensor)| Some((name, tensor.as_ref()?.element())));
        [("T1", self.t1())].into_iter().chain(of_state).collect()
    }

    /// What cases can be told apart by: operator, types, attributes, and sizes as far as shapes say.
    pub fn properties(&self) -> BTreeMap<&'static str, String> {
        let types = self.types().into_iter().map(|(name, element)| (name, element.name().to_owned()));
        let integers = self.attributes.iter().map(|(&name, value)| (name, value.to_string()));
        let numbers = self.floats.iter().map(|(&name, value)| (name, value.to_string())).chain(integers);
        let sizes = self.sizes().into_iter().map(|(name, size)| (name, size.to_string()));
        let operator = ("operator", self.operator.name().to_owned());
        sizes.into_iter().chain(types).chain(numbers).chain([operator]).collect()
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let shape = |name: &str| self.steps[0].inputs.get(name).map(Tensor::shape);
        let mut sizes = Vec::new();
        if let Some(&[.., heads, head_dim]) = shape("current_key").or_else(|| shape("key")) {
            sizes.extend([("cache_heads", heads), ("head_dim", head_dim)]);
        }
        match (shape("kvstarts"), shape("current_key")) {
            (Some(&[starts]), _) if starts > 0 => sizes.push(("batch", starts - 1)),
            (None, Some(&[batch, ..])) => sizes.push(("batch", batch)),
            _ => {}
        }
        if self.operator.suite() == Suite::Attention {
            let sinks = self.steps.iter().filter_map(|step| step.inputs.get(HEAD_SINK));
            let has_sinks = sinks.flat_map(Tensor::bytes).next().is_some();
            sizes.extend([(multi_head_attention::MASS, self.has_mass().into()), (HEAD_SINK, has_sinks.into())]);
        }
        sizes
    }
}
