//! A case: a node, its state, and calls with the expected results.

use std::path::PathBuf;

use kvcache_schema::{Attributes, ElementType};

use crate::rules::OperatorPage;
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

impl Case {
    /// The page that states its rules.
    pub const fn page(&self) -> OperatorPage {
        OperatorPage::KeyValueCache
    }
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

/// One call.
#[derive(Debug, Clone)]
pub struct Step<I = StepInputs> {
    /// What the call is given.
    pub inputs: I,
    /// What it must do.
    pub expected: Expected,
}

/// The inputs of a call other than `cache` and `scale`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are the operator's inputs")]
pub struct StepInputs {
    pub current_key: Tensor,
    pub current_value: Tensor,
    pub seqstarts: Tensor,
    pub kvstarts: Tensor,
    pub cachestarts: Tensor,
    pub start_pos: Tensor,
    pub max_seqlen: Tensor,
    pub max_kvlen: Tensor,
}

/// The inputs of a call other than `cache` and `scale`, of any operator that has both.
pub trait NamedInputs {
    /// The inputs by their names, in the operator's order.
    fn named(&self) -> Vec<(&'static str, &Tensor)>;
}

impl NamedInputs for StepInputs {
    fn named(&self) -> Vec<(&'static str, &Tensor)> {
        vec![
            ("current_key", &self.current_key),
            ("current_value", &self.current_value),
            ("seqstarts", &self.seqstarts),
            ("kvstarts", &self.kvstarts),
            ("cachestarts", &self.cachestarts),
            ("start_pos", &self.start_pos),
            ("max_seqlen", &self.max_seqlen),
            ("max_kvlen", &self.max_kvlen),
        ]
    }
}

/// The outputs of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the operator's outputs")]
pub struct Outputs {
    pub key: Tensor,
    pub value: Tensor,
}

/// What a call must do; `A` is what there is after a call that succeeds.
#[derive(Debug, Clone)]
pub enum Expected<A = After> {
    /// Give outputs and change the state.
    Success(Box<A>),
    /// Be refused, and leave the state as it was.
    Refusal {
        /// The kind of error.
        kind: String,
        /// What the message must contain.
        mentions: Vec<String>,
    },
}

impl<A> Expected<A> {
    /// Takes away what the message of a refusal must mention: no rule of the operators says how an error is worded.
    pub fn forget_message(&mut self) {
        if let Self::Refusal { mentions, .. } = self {
            mentions.clear();
        }
    }
}

/// Outputs and state after a call.
#[derive(Debug, Clone)]
pub struct After {
    /// `key` and `value`.
    pub outputs: Outputs,
    /// `cache` after the call.
    pub cache: Tensor,
    /// `scale` after the call, if given.
    pub scale: Option<Tensor>,
}
