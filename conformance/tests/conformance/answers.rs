//! The cases of all suites, read once; and their expected results, as they are or changed.

use std::sync::LazyLock;

use half::{bf16, f16};
use kvcache_conformance::{
    CallResult, Case, Expected, Implementation, Outcome, Suite, Tensor, attention, cases, static_batching,
};
use kvcache_schema::ElementType;

pub static DYNAMIC: LazyLock<Vec<Case>> = LazyLock::new(|| cases().unwrap());
pub static STATIC: LazyLock<Vec<static_batching::Case>> = LazyLock::new(|| static_batching::cases().unwrap());
pub static ATTENTION: LazyLock<Vec<attention::Case>> = LazyLock::new(|| attention::cases().unwrap());

/// Gives the expected results of a case, changed by a function.
pub struct Answers<F>(pub F);

impl<C: Suite, F: Fn(&C, &mut Vec<CallResult>) -> Result<(), String>> Implementation<C> for Answers<F> {
    fn run(&self, case: &C) -> Result<Vec<CallResult>, String> {
        let mut results = answers(case);
        (self.0)(case, &mut results)?;
        Ok(results)
    }
}

pub fn answers<C: Suite>(case: &C) -> Vec<CallResult> {
    let [mut cache, mut scale] = case.state().map(|tensor| tensor.cloned());
    let t1 = case.types()["T1"];
    let answer = |(_, expected): (_, &Expected)| {
        let outcome = match expected {
            Expected::Success(after) => {
                (cache, scale) = (after.cache.clone(), after.scale.clone());
                let mut outputs = after.outputs.clone();
                if !after.tolerance.is_empty() {
                    outputs[0] = of_type(&outputs[0], t1);
                }
                Outcome::Done(outputs)
            }
            Expected::Refusal { kind, mentions } => {
                Outcome::Refused { kind: Some(kind.clone()), message: mentions.join(" ") }
            }
        };
        CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
    };
    case.calls().into_iter().map(answer).collect()
}

pub fn is_legal<C: Suite>(case: &C) -> bool {
    case.calls().iter().all(|(_, expected)| matches!(expected, Expected::Success(_)))
}

pub fn last_outputs(results: &mut [CallResult]) -> &mut Vec<Tensor> {
    match &mut results.last_mut().expect("a case has calls").outcome {
        Outcome::Done(outputs) => outputs,
        Outcome::Refused { .. } => unreachable!("the last call succeeds"),
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

pub fn integers(tensor: &Tensor) -> Vec<i64> {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
}
