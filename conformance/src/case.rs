//! A case: a node, its state, and calls with the expected results.

use std::path::PathBuf;

use kvcache_schema::{Attributes, ElementType};

use crate::difference::Value;
use crate::tensor::Tensor;

/// A node with its state, and calls that are made one after the other; its attributes are `A`, and a call is given `I`.
#[derive(Debug, Clone)]
pub struct Case<A = Attributes, I = StepInputs> {
    /// The name of its folder.
    pub name: String,
    /// Its folder; that of a case in the library (the feature `embedded`) is a mere name, and begins with `embedded:`.
    pub folder: PathBuf,
    /// What it tests, in words.
    pub about: String,
    /// The rules of the operator's page that it proves, by their [ids](crate::Rule::id).
    pub rules: Vec<String>,
    /// The types of the node.
    pub types: Types,
    /// The attributes of the node.
    pub attributes: A,
    /// How NaNs are compared.
    pub nan: NanRule,
    /// `cache` before the first call.
    pub cache: Tensor,
    /// `scale` before the first call, if given.
    pub scale: Option<Tensor>,
    /// The calls.
    pub steps: Vec<Step<I>>,
}

/// The types of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// The type of `current_key`.
    pub t1: ElementType,
    /// The type of `cache`.
    pub t2: ElementType,
    /// The type of `scale`, if given.
    pub t3: Option<ElementType>,
}

/// How NaNs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NanRule {
    /// By their bits, like every other value.
    Exact,
    /// Any NaN equals any NaN of a float tensor: arithmetic makes them here, with the hardware's bits.
    Any,
}

impl NanRule {
    pub(crate) fn are_alike(self, one: &Tensor, other: &Tensor) -> bool {
        let equal = |(one, other): (Value, Value)| one == other || one.is_nan() && other.is_nan();
        let pairs = || (0..Value::count(one)).map(|i| (Value::at(one, i), Value::at(other, i)));
        (one.element(), one.shape()) == (other.element(), other.shape())
            && (one.bytes() == other.bytes() || self == Self::Any && one.element().is_float() && pairs().all(equal))
    }
}

/// One call.
#[derive(Debug, Clone)]
pub struct Step<I = StepInputs> {
    /// What the call is given.
    pub inputs: I,
    /// What it must do.
    pub expected: Expected,
}

/// The inputs of a call other than `cache` and `scale`, of any operator that has both.
pub trait NamedInputs {
    /// The inputs by their names, in the operator's order.
    fn named(&self) -> Vec<(&'static str, &Tensor)>;
}

/// The inputs of an operator, each a field.
macro_rules! step_inputs {
    ($($name:ident),+) => {
        /// The inputs of a call other than `cache` and `scale`.
        #[derive(Debug, Clone)]
        #[expect(missing_docs, reason = "the fields are the operator's inputs")]
        pub struct StepInputs {
            $(pub $name: $crate::Tensor,)+
        }

        impl StepInputs {
            /// Those that a function gives by their names.
            pub(crate) fn of<E>(tensor: impl Fn(&str) -> Result<$crate::Tensor, E>) -> Result<Self, E> {
                Ok(Self { $($name: tensor(stringify!($name))?,)+ })
            }
        }

        impl $crate::NamedInputs for StepInputs {
            fn named(&self) -> Vec<(&'static str, &$crate::Tensor)> {
                vec![$((stringify!($name), &self.$name)),+]
            }
        }
    };
}
pub(crate) use step_inputs;

step_inputs!(current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen);

/// What a call must do.
#[derive(Debug, Clone)]
pub enum Expected {
    /// Give outputs and change the state.
    Success(Box<After>),
    /// Be refused, and leave the state as it was.
    Refusal {
        /// The kind of error.
        kind: String,
        /// What the message must contain.
        mentions: Vec<String>,
    },
}

impl Expected {
    /// Takes away what the message of a refusal must mention.
    pub(crate) fn forget_message(&mut self) {
        if let Self::Refusal { mentions, .. } = self {
            mentions.clear();
        }
    }
}

/// What files call the tolerance of each output of attention, ...
pub(crate) const TOLERANCES: [&str; 2] = ["tolerance", "mass_tolerance"];
/// ... its outputs over products that are not rounded, and the tolerance of each of these.
pub(crate) const UNROUNDED: [&str; 2] = ["unrounded.attn_output", "unrounded.attention_mass"];
pub(crate) const UNROUNDED_TOLERANCES: [&str; 2] = ["unrounded.tolerance", "unrounded.mass_tolerance"];

/// Outputs and state after a call.
#[derive(Debug, Clone)]
pub struct After {
    /// The outputs, by position: `key` and `value`, or `attn_output` and perhaps `attention_mass`, which are float32
    /// whatever the output's type.
    pub outputs: Vec<Tensor>,
    /// How far each element of an output of attention may be from it, float32; nothing where bits count. Where the
    /// oracle's is not finite, the output must be so too.
    pub tolerance: Vec<Tensor>,
    /// Over a quantized cache the outputs and their tolerance where products of code and scale are not rounded, if that
    /// differs: all of a call is near the ones or the others.
    pub unrounded: Option<[Vec<Tensor>; 2]>,
    /// `cache` after the call, if the operator has one.
    pub cache: Option<Tensor>,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}

impl After {
    /// The outputs, which are called so, and the state by their names. The tolerance is among them, and what is unrounded.
    pub fn named(&self, outputs: &[&'static str]) -> Vec<(&'static str, &Tensor)> {
        let [unrounded, its_tolerance] = [0, 1].map(|i| self.unrounded.iter().flat_map(move |pair| &pair[i]));
        let state = [("cache", self.cache.as_ref()), ("scale", self.scale.as_ref())];
        let state = state.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)));
        let of_attention = TOLERANCES.into_iter().zip(&self.tolerance);
        let of_attention = of_attention.chain(UNROUNDED.into_iter().zip(unrounded));
        let of_attention = of_attention.chain(UNROUNDED_TOLERANCES.into_iter().zip(its_tolerance));
        outputs.iter().copied().zip(&self.outputs).chain(of_attention).chain(state).collect()
    }
}
