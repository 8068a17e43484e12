//! What every suite has in common, as its type of case has it.

use std::collections::BTreeMap;
use std::path::Path;

use kvcache_schema::ElementType;
use serde::Serialize;

use crate::case::{Expected, NanRule};
use crate::difference::{Call, Difference, Location, Mismatch};
use crate::rules::OperatorPage;
use crate::run::{CallResult, Demand};
use crate::tensor::Tensor;

/// Tensors by their names.
pub type Named<'a> = Vec<(&'static str, &'a Tensor)>;

/// `cache` and `scale`, as far as there are any.
pub type State<'a> = [Option<&'a Tensor>; 2];

/// A case of one of the suites: a node, its state, and calls with what they must do.
pub trait Suite: Sync {
    /// The suite's name.
    const NAME: &'static str;

    /// The names of the outputs, by position.
    const OUTPUTS: &'static [&'static str];

    /// The names of those that its calls give: all but perhaps the last ones.
    fn outputs(&self) -> &'static [&'static str] {
        Self::OUTPUTS
    }

    /// The case's name.
    fn name(&self) -> &str;

    /// Its folder.
    fn folder(&self) -> &Path;

    /// What it tests, in words.
    fn about(&self) -> &str;

    /// The ids of the rules that it proves.
    fn rules(&self) -> &[String];

    /// The page of its operator, which states these rules.
    fn page(&self) -> OperatorPage;

    /// The type parameters `T1`, `T2` and `T3`, as far as the case has them.
    fn types(&self) -> BTreeMap<&'static str, ElementType>;

    /// The attributes that the operator has, by their names.
    fn attributes(&self) -> Vec<(&'static str, i64)>;

    /// The sizes `batch`, `cache_heads` and, where it is no attribute, `head_dim`, as far as shapes say; and of attention
    /// whether its calls give `attention_mass`.
    fn sizes(&self) -> Vec<(&'static str, i64)>;

    /// How NaNs are compared.
    fn nan(&self) -> NanRule;

    /// The state before the first call.
    fn state(&self) -> State<'_>;

    /// The calls: the inputs of each but for cache and scale, and what it must do.
    fn calls(&self) -> Vec<(Named<'_>, &Expected)>;

    /// Takes away what messages must mention: no rule of the operators says how an error is worded.
    fn forget_messages(&mut self);

    /// What an element of a tensor of call `call` stands for.
    fn locate(&self, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<Location>;

    /// What an implementation must be able to do to run it.
    fn features(&self) -> Features {
        let numbers = self.attributes().into_iter().chain(self.sizes()).collect();
        Features { operator: self.page(), types: self.types(), numbers }
    }

    /// The first difference between the results of its calls and what is demanded of them.
    fn difference(&self, results: &[CallResult], demand: Demand) -> Option<Difference> {
        let (calls, mut before) = (self.calls(), self.state());
        if results.len() != calls.len() {
            let mismatch = Mismatch::Calls { got: results.len(), expected: calls.len() };
            return Some(Difference { call: None, mismatch });
        }
        let outputs = (self.outputs(), self.types()["T1"]);
        calls.iter().zip(results).enumerate().find_map(|(i, ((_, expected), result))| {
            let call = Call { expected, demand, outputs, nan: self.nan(), before, result };
            before = [result.cache.as_ref(), result.scale.as_ref()];
            let mismatch = call.mismatch(|name, tensor, index| self.locate(i, name, tensor, index))?;
            Some(Difference { call: Some(i), mismatch })
        })
    }
}

/// What [`Suite`] asks of a case that is among its fields.
macro_rules! fields_of_case {
    () => {
        fn name(&self) -> &str {
            &self.name
        }

        fn folder(&self) -> &std::path::Path {
            &self.folder
        }

        fn about(&self) -> &str {
            &self.about
        }

        fn rules(&self) -> &[String] {
            &self.rules
        }

        fn calls(&self) -> Vec<($crate::Named<'_>, &$crate::Expected)> {
            self.steps.iter().map(|step| ($crate::NamedInputs::named(&step.inputs), &step.expected)).collect()
        }

        fn forget_messages(&mut self) {
            self.steps.iter_mut().for_each(|step| step.expected.forget_message());
        }
    };
}
pub(crate) use fields_of_case;

/// A known mistake that gives what an implementation gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The name of the mistake.
    pub mistake: String,
    /// What is done wrong.
    pub about: String,
    /// The id of the rule that it breaks.
    pub rule: String,
}

/// What an implementation must be able to do to run a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// The operator, by its page.
    pub operator: OperatorPage,
    /// The type parameters `T1`, `T2` and `T3`, as far as the case has them.
    pub types: BTreeMap<&'static str, ElementType>,
    /// The attributes and the sizes of tensors, by their names.
    pub numbers: BTreeMap<&'static str, i64>,
}
