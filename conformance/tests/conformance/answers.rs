//! The cases of all suites, read once; and their expected results, as they are or changed.

use std::sync::LazyLock;

use half::{bf16, f16};
use kvcache_conformance::{CallResult, Case, Expected, Implementation, Outcome, Suite, Tensor, cases};
use kvcache_schema::ElementType;

/// The golden cases of all suites.
pub static CASES: LazyLock<Vec<Case>> =
    LazyLock::new(|| Suite::ALL.into_iter().flat_map(|suite| cases(suite).unwrap()).collect());

pub fn of_suite(suite: Suite) -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(move |case| case.operator.suite() == suite)
}

/// Gives the expected results of a case, changed by a function.
pub struct Answers<F>(pub F);

impl<F: Fn(&Case, &mut Vec<CallResult>) -> Result<(), String> + Sync> Implementation for Answers<F> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut results = answers(case);
        (self.0)(case, &mut results)?;
        Ok(results)
    }
}

pub fn answers(case: &Case) -> Vec<CallResult> {
    let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
    let answer = |step: &kvcache_conformance::Step| {
        let outcome = match &step.expected {
            Expected::Success(after) => {
                (cache, scale) = (after.get("cache").cloned(), after.get("scale").cloned());
                let mut outputs: Vec<_> = case.outputs.iter().map(|name| after[name].clone()).collect();
                if after.contains_key("tolerance") {
                    outputs[0] = of_type(&outputs[0], case.t1());
                }
                Outcome::Done(outputs)
            }
            Expected::Refusal { kind, mentions } => {
                Outcome::Refused { kind: Some(kind.clone()), message: mentions.join(" ") }
            }
        };
        CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
    };
    case.steps.iter().map(answer).collect()
}

pub fn last_outputs(results: &mut [CallResult]) -> &mut Vec<Tensor> {
    match &mut results.last_mut().expect("a case has calls").outcome {
        Outcome::Done(outputs) => outputs,
        other => unreachable!("the last call succeeds: {other:?}"),
    }
}

/// A float32 tensor, rounded to another float type.
pub fn of_type(tensor: &Tensor, t1: ElementType) -> Tensor {
    let rounded = |round: fn(f32) -> [u8; 2]| floats(tensor).into_iter().flat_map(round).collect::<Vec<_>>();
    let bytes = match t1 {
        ElementType::Float32 => return tensor.clone(),
        ElementType::BFloat16 => rounded(|x| bf16::from_f32(x).to_le_bytes()),
        _ => rounded(|x| f16::from_f32(x).to_le_bytes()),
    };
    Tensor::new(t1, tensor.shape().to_vec(), &bytes).expect("as many elements")
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

pub fn of_floats(like: &Tensor, values: impl IntoIterator<Item = f32>) -> Tensor {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Tensor::new(ElementType::Float32, like.shape().to_vec(), &bytes).expect("as many elements")
}
