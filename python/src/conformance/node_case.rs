//! A case of any suite as a node and its calls.

use kvcache_conformance::attention::{self, Operator};
use kvcache_conformance::diagnosis::Diagnosable;
use kvcache_conformance::{CallResult, Case, Expected, NamedInputs, NanRule, Outcome, Outputs, Tensor};
use kvcache_op::schema::{self, AttributeSpec};
use kvcache_op::{AttentionAttributes, Attributes, CacheAttentionAttributes, StaticAttributes};

/// Tensors by their names.
pub type Named<'a> = Vec<(&'static str, &'a Tensor)>;

/// What a call must do: write these outputs and this state, or be refused with this kind of error, whose message has
/// these texts.
pub type Demanded<'a> = Result<Named<'a>, (&'a str, &'a [String])>;

/// A case of any suite.
pub trait NodeCase: Diagnosable {
    /// The operator's name in a graph.
    fn op_type(&self) -> &'static str;

    /// The attributes that the operator has, by their names.
    fn attributes(&self) -> Vec<(&'static str, i64)>;

    /// `cache` and `scale` before the first call, as far as there are any.
    fn state(&self) -> [Option<&Tensor>; 2];

    /// Whether any NaN equals any other.
    fn any_nan(&self) -> bool;

    /// The calls: the inputs of each but for cache and scale, and what it must do. The tolerance of an output is among
    /// the tensors, too.
    fn calls(&self) -> Vec<(Named<'_>, Demanded<'_>)>;

    /// Takes away what messages must mention.
    fn forget_messages(&mut self);

    /// What a call has given: its outputs by position, and the state after it.
    fn result(
        outcome: Outcome<Vec<Tensor>>,
        cache: Option<Tensor>,
        scale: Option<Tensor>,
    ) -> Result<Self::Result, String>;
}

/// Attributes that can be listed.
pub trait NamedAttributes {
    /// The attributes by their names.
    fn named(&self) -> Vec<(&'static str, i64)>;
}

impl NamedAttributes for Attributes {
    fn named(&self) -> Vec<(&'static str, i64)> {
        values(&Self::SPEC, self)
    }
}

impl NamedAttributes for StaticAttributes {
    fn named(&self) -> Vec<(&'static str, i64)> {
        values(&Self::SPEC, self)
    }
}

impl<A: NamedAttributes, I: NamedInputs> NodeCase for Case<A, I>
where
    Self: Diagnosable<Result = CallResult>,
{
    fn op_type(&self) -> &'static str {
        schema::NAME
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        self.attributes.named()
    }

    fn state(&self) -> [Option<&Tensor>; 2] {
        [Some(&self.cache), self.scale.as_ref()]
    }

    fn any_nan(&self) -> bool {
        self.nan == NanRule::Any
    }

    fn calls(&self) -> Vec<(Named<'_>, Demanded<'_>)> {
        let demanded = |expected| {
            demanded(expected, |after: &kvcache_conformance::After| {
                let outputs = [("key", &after.outputs.key), ("value", &after.outputs.value), ("cache", &after.cache)];
                outputs.into_iter().chain(after.scale.as_ref().map(|scale| ("scale", scale))).collect()
            })
        };
        self.steps.iter().map(|step| (step.inputs.named(), demanded(&step.expected))).collect()
    }

    fn forget_messages(&mut self) {
        self.steps.iter_mut().for_each(|step| step.expected.forget_message());
    }

    fn result(
        outcome: Outcome<Vec<Tensor>>,
        cache: Option<Tensor>,
        scale: Option<Tensor>,
    ) -> Result<CallResult, String> {
        let outcome = outputs(outcome)?.map(|[key, value]| Outputs { key, value });
        Ok(CallResult { outcome, cache: cache.ok_or("got no cache")?, scale })
    }
}

impl NodeCase for attention::Case {
    fn op_type(&self) -> &'static str {
        self.operator.name()
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        let mut named = values(&AttentionAttributes::SPEC, &self.attributes.attention);
        if self.operator == Operator::MultiHeadCacheAttention {
            let cache = self.attributes.cache.named();
            named.extend(cache.into_iter().filter(|(name, _)| *name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE));
        }
        named
    }

    fn state(&self) -> [Option<&Tensor>; 2] {
        [self.cache.as_ref(), self.scale.as_ref()]
    }

    fn any_nan(&self) -> bool {
        false
    }

    fn calls(&self) -> Vec<(Named<'_>, Demanded<'_>)> {
        let demanded = |expected| {
            demanded(expected, |after: &attention::After| {
                let state = [("cache", &after.cache), ("scale", &after.scale)];
                let state = state.into_iter().filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
                [("attn_output", &after.attn_output), ("tolerance", &after.tolerance)]
                    .into_iter()
                    .chain(state)
                    .collect()
            })
        };
        self.steps.iter().map(|step| (inputs(step), demanded(&step.expected))).collect()
    }

    fn forget_messages(&mut self) {
        self.steps.iter_mut().for_each(|step| step.expected.forget_message());
    }

    fn result(
        outcome: Outcome<Vec<Tensor>>,
        cache: Option<Tensor>,
        scale: Option<Tensor>,
    ) -> Result<attention::CallResult, String> {
        Ok(attention::CallResult { outcome: outputs(outcome)?.map(|[attn_output]| attn_output), cache, scale })
    }
}

/// The inputs of a call of attention.
fn inputs(step: &attention::Step) -> Named<'_> {
    step.inputs.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

/// The attributes by their names.
fn values<A>(specs: &[AttributeSpec<A>], attributes: &A) -> Vec<(&'static str, i64)> {
    specs.iter().map(|spec| (spec.name, spec.value(attributes))).collect()
}

fn demanded<'a, A>(expected: &'a Expected<A>, tensors: impl Fn(&'a A) -> Named<'a>) -> Demanded<'a> {
    match expected {
        Expected::Success(after) => Ok(tensors(after)),
        Expected::Refusal { kind, mentions } => Err((kind, mentions)),
    }
}

/// The outcome with as many outputs as the operator has.
fn outputs<const N: usize>(outcome: Outcome<Vec<Tensor>>) -> Result<Outcome<[Tensor; N]>, String> {
    match outcome {
        Outcome::Refused { kind, message } => Ok(Outcome::Refused { kind, message }),
        Outcome::Done(outputs) => match outputs.try_into() {
            Ok(outputs) => Ok(Outcome::Done(outputs)),
            Err(outputs) => Err(format!("got {} outputs, expected {N}", Vec::len(&outputs))),
        },
    }
}
