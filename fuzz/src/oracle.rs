//! What must become of a call by the conformance suite's oracle, which shares no code with validation and kernels.

use std::path::PathBuf;

use kvcache_conformance::oracle::{Behavior, Call as OracleCall, Inputs, Oracle, PredictedOutcome, PredictedState};
use kvcache_conformance::{Case, Expected, NanRule, Step, StepInputs, Tensor, Types, static_batching};
use kvcache_op::schema::TypeCombination;
use kvcache_op::{Attributes, ElementType, StaticAttributes};

use crate::attention_rules::broken_rules as broken_attention_rules;
use crate::call::{After, Call, Operator};
use crate::operand::{Operand, repeat};

/// What a call must do.
#[derive(Debug)]
pub enum Verdict {
    /// It is legal.
    Legal,
    /// It breaks rules, of which these are the first.
    Broken(Vec<String>),
}

impl Verdict {
    fn too_large() -> Self {
        Self::Broken(vec!["a tensor's size is more than memory can have".to_owned()])
    }
}

/// Bytes up to which a tensor is given to the oracle.
const MOST: usize = 1 << 20;

impl Call {
    /// What must become of a call; `None` where that is not known: of large tensors, and of outputs inside of inputs.
    pub fn verdict(&self) -> Option<Verdict> {
        if self
            .overlap
            .is_some_and(|overlap| [overlap.name, overlap.of].iter().any(|name| self.operand(name).is_none()))
        {
            return None; // an output: a call that is made fails by itself
        }
        if self.writes_overlap() {
            return Some(Verdict::Broken(vec![format!(
                "memory that is written is another tensor's: {:?}",
                self.overlap
            )]));
        }
        if !self.sizes_fit()? {
            return Some(Verdict::too_large());
        }
        let attends = matches!(self.operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention);
        let indices = self.operands.iter().filter(|operand| operand.element == ElementType::Int64);
        if attends && { indices }.any(|operand| operand.len().is_none_or(|len| len > MOST)) {
            return None; // starts that are not there
        }
        let mut broken: Vec<String> = Vec::new();
        if attends {
            broken.extend(broken_attention_rules(self).into_iter().map(str::to_owned));
        }
        if broken.is_empty() {
            broken = match self.operator {
                Operator::KeyValueCache | Operator::MultiHeadCacheAttention => broken_rules(&self.dynamic_case()?),
                Operator::StaticKeyValueCache => broken_rules(&self.static_case()?),
                Operator::MultiHeadAttention => Vec::new(),
            };
        }
        Some(if broken.is_empty() { Verdict::Legal } else { Verdict::Broken(broken) })
    }

    /// The same of a legal call whose dimensions have grown in all shapes.
    pub fn verdict_of_sizes(&self) -> Option<Verdict> {
        match self.sizes_fit()? {
            false => Some(Verdict::too_large()),
            // Several tensors without memory may lie in each other.
            true => (self.absent() < 2).then_some(Verdict::Legal),
        }
    }

    /// What the oracle says that a legal call leaves behind; `None` where it says nothing.
    pub fn predicted(&self) -> Option<After> {
        if self.overlap.is_some() {
            return None;
        }
        match self.operator {
            Operator::KeyValueCache => predicted(&self.dynamic_case()?),
            Operator::StaticKeyValueCache => predicted(&self.static_case()?),
            Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention => None,
        }
    }

    fn tensor(&self, name: &str) -> Option<Tensor> {
        let operand = self.operand(name)?;
        let len = operand.len().filter(|&len| len <= MOST)?;
        // Rows without bytes are not counted by them.
        operand.shape.iter().all(|&len| len <= MOST).then_some(())?;
        let mut bytes = vec![0; len];
        repeat(&operand.bytes, &mut bytes);
        Tensor::new(operand.element, operand.shape.clone(), &bytes)
    }

    fn case<A, I>(&self, attributes: A, inputs: I) -> Option<Case<A, I>> {
        let (current, cache) = (self.operand("current_key")?, self.operand("cache")?);
        let scale = self.operand("scale");
        Some(Case {
            name: String::new(),
            folder: PathBuf::new(),
            about: String::new(),
            rules: Vec::new(),
            types: Types { t1: current.element, t2: cache.element, t3: scale.map(|scale: &Operand| scale.element) },
            attributes,
            nan: NanRule::Exact,
            cache: self.tensor("cache")?,
            scale: scale.map_or(Some(None), |_| self.tensor("scale").map(Some))?,
            steps: vec![Step { inputs, expected: Expected::Refusal { kind: String::new(), mentions: Vec::new() } }],
        })
    }

    fn dynamic_case(&self) -> Option<Case> {
        let mut attributes = Attributes::default();
        for &(name, value) in &self.attributes {
            let attends = self.operator == Operator::MultiHeadCacheAttention;
            assert!(attributes.set(name, value) || attends, "{name}");
        }
        let inputs = StepInputs {
            current_key: self.tensor("current_key")?,
            current_value: self.tensor("current_value")?,
            seqstarts: self.tensor("seqstarts")?,
            kvstarts: self.tensor("kvstarts")?,
            cachestarts: self.tensor("cachestarts")?,
            start_pos: self.tensor("start_pos")?,
            max_seqlen: self.tensor("max_seqlen")?,
            max_kvlen: self.tensor("max_kvlen")?,
        };
        self.case(attributes, inputs)
    }

    fn static_case(&self) -> Option<static_batching::Case> {
        let mut attributes = StaticAttributes::default();
        for &(name, value) in &self.attributes {
            assert!(attributes.set(name, value), "{name}");
        }
        let inputs = static_batching::StepInputs {
            current_key: self.tensor("current_key")?,
            current_value: self.tensor("current_value")?,
            start_pos: self.tensor("start_pos")?,
        };
        self.case(attributes, inputs)
    }
}

/// Fails if a call has left behind other bits than it should have. Of large ones nothing is known.
pub fn matches_the_oracle(call: &Call, after: After) {
    const MOST: usize = 1 << 14;
    if after.outputs.iter().chain(&after.cache).all(|bytes| bytes.len() <= MOST)
        && let Some(predicted) = call.predicted()
    {
        let element = |name: &str| call.operand(name).map(|operand| operand.element);
        let [Some(t1), Some(t2)] = ["current_key", "cache"].map(element) else { unreachable!("always given") };
        let types = TypeCombination { quant_bit: call.attribute("quant_bit"), t1, t2, t3: element("scale") };
        assert!(after.with_one_nan(types) == predicted.with_one_nan(types), "other bits than the oracle's");
    }
}

fn broken_rules<A, I: Inputs<A>>(case: &Case<A, I>) -> Vec<String> {
    let Case { types, attributes, cache, scale, steps, .. } = case;
    let call = OracleCall { types: *types, attributes, inputs: &steps[0].inputs, cache, scale: scale.as_ref() };
    let broken = I::broken_rules(&call, &Behavior::default()).into_iter();
    // Sizes are known already, and more exactly: the suite's oracle takes every element for one of four bytes.
    broken.filter(|broken| broken.kind != "size_overflow").map(|broken| broken.to_string()).collect()
}

fn predicted<A, I: Inputs<A>>(case: &Case<A, I>) -> Option<After> {
    let prediction = Oracle::default().predict(case).pop()?;
    let (PredictedOutcome::Done(outputs), PredictedState::Known(cache, scale)) = (prediction.outcome, prediction.state)
    else {
        return None;
    };
    Some(After {
        outputs: [outputs.key, outputs.value].map(|output| output.bytes().to_vec()).to_vec(),
        cache: Some(cache.bytes().to_vec()),
        scale: scale.map(|scale| scale.bytes().to_vec()),
    })
}
