//! What every suite has in common, as its type of case has it.

use std::collections::BTreeMap;

use kvcache_schema::ElementType;
use serde::Serialize;

use crate::demand::Demand;
use crate::difference::Difference;
use crate::rules::OperatorPage;

/// A case of one of the suites: what it is called, what it proves, and how results are compared with it.
pub trait Suite: Sync {
    /// The result of one call.
    type Result;

    /// The suite's name.
    const NAME: &'static str;

    /// The case's name.
    fn name(&self) -> &str;

    /// What it tests, in words.
    fn about(&self) -> &str;

    /// The ids of the rules that it proves.
    fn rules(&self) -> &[String];

    /// The page of its operator, which states these rules.
    fn page(&self) -> OperatorPage;

    /// What an implementation must be able to do to run it.
    fn features(&self) -> Features;

    /// The first difference between the results of its calls and what is demanded of them.
    fn difference(&self, results: &[Self::Result], demand: Demand) -> Option<Difference>;
}

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
