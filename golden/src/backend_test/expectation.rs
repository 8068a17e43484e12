//! A case of any suite, with what its calls must do in the terms of a graph.

use half::f16;
use kvcache_schema::ElementType;

use crate::case::{Case, Expected, NanRule};
use crate::onnx::{NodeCase, state};
use crate::suite::Suite;
use crate::tensor::Tensor;
use crate::{After, attention};

/// A case of any suite, to be written.
#[derive(Debug, Clone)]
pub struct TestCase<'a> {
    pub(super) name: String,
    pub(super) about: &'a str,
    pub(super) case: NodeCase<'a>,
    pub(super) any_nan: bool,
    pub(super) expected: Vec<Expectation<'a>>,
}

/// What a call must do.
#[derive(Debug, Clone)]
pub(super) enum Expectation<'a> {
    /// Give outputs, and change the state.
    Success {
        /// The outputs, by position.
        outputs: Vec<Tensor>,
        /// The exact output, and how far an output may be from it.
        within: Option<(&'a Tensor, &'a Tensor)>,
        /// `cache` and `scale`, as far as there are any.
        state: Vec<(&'static str, &'a Tensor)>,
    },
    /// Be refused.
    Refusal {
        /// With this kind of error.
        kind: &'a str,
        /// And these texts in the message.
        mentions: &'a [String],
    },
}

impl<'a> Expectation<'a> {
    fn new<A>(expected: &'a Expected<A>, success: impl FnOnce(&'a A) -> Self) -> Self {
        match expected {
            Expected::Success(after) => success(after),
            Expected::Refusal { kind, mentions } => Self::Refusal { kind, mentions },
        }
    }
}

/// The name of a test: letters, digits and underscores, as ONNX has them.
fn test_name(suite: &str, case: &str) -> String {
    format!("{suite}_{case}").replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

impl<'a, A, I> From<&'a Case<A, I>> for TestCase<'a>
where
    Case<A, I>: Suite,
    NodeCase<'a>: From<&'a Case<A, I>>,
{
    fn from(case: &'a Case<A, I>) -> Self {
        let success = |After { outputs, cache, scale }: &'a After| Expectation::Success {
            outputs: vec![outputs.key.clone(), outputs.value.clone()],
            within: None,
            state: state(Some(cache), scale.as_ref()),
        };
        Self {
            name: test_name(Case::<A, I>::NAME, &case.name),
            about: &case.about,
            case: case.into(),
            any_nan: case.nan == NanRule::Any,
            expected: case.steps.iter().map(|step| Expectation::new(&step.expected, success)).collect(),
        }
    }
}

impl<'a> From<&'a attention::Case> for TestCase<'a> {
    fn from(case: &'a attention::Case) -> Self {
        let success = |after: &'a attention::After| Expectation::Success {
            outputs: vec![rounded(&after.attn_output, case.t1)],
            within: Some((&after.attn_output, &after.tolerance)),
            state: state(after.cache.as_ref(), after.scale.as_ref()),
        };
        Self {
            name: test_name(attention::Case::NAME, &case.name),
            about: &case.about,
            case: case.into(),
            any_nan: false,
            expected: case.steps.iter().map(|step| Expectation::new(&step.expected, success)).collect(),
        }
    }
}

/// A float32 tensor in the type of an output.
fn rounded(exact: &Tensor, t1: ElementType) -> Tensor {
    if t1 != ElementType::Float16 {
        return exact.clone();
    }
    let words = exact.bytes().as_chunks().0.iter();
    let bytes: Vec<u8> = words.flat_map(|&word| f16::from_f32(f32::from_le_bytes(word)).to_le_bytes()).collect();
    match Tensor::new(t1, exact.shape().to_vec(), &bytes) {
        Some(tensor) => tensor,
        None => unreachable!("as many elements as the exact tensor has"),
    }
}
