//! What became of each case, and how many ended how: of all, of each rule, with each flaw.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;

use crate::case::Operator;
use crate::compare::Difference;
use crate::rules::{Rule, rules};

/// What became of some cases. Displayed, it is a text for a terminal; [`json`](Self::json) gives it as JSON.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The name of what was tested.
    pub implementation: String,
    /// An entry for each case, in the order of the cases.
    pub entries: Vec<Entry>,
}

/// What became of a case.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its operator, whose page states its rules.
    pub operator: Operator,
    /// Its name.
    pub case: String,
    /// What it tests, in words.
    pub about: String,
    /// The ids of the rules that it proves.
    pub rules: Vec<String>,
    /// What it can be told apart by: types, attributes, sizes.
    pub properties: BTreeMap<&'static str, String>,
    /// Whether all its calls must succeed, and give elements: one that refuses what is illegal, or does nothing, may
    /// pass where all else is wrong.
    pub tells: bool,
    /// How long it ran.
    pub time: Duration,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Everything is as expected.
    Passed,
    /// Something is not.
    Failed(Box<Difference>),
    /// The implementation does not do what the case needs, for a reason.
    Unsupported(String),
    /// It was left out, for a reason.
    NotRun(String),
}

impl Verdict {
    /// The verdict in a word, and why a case is unsupported or was not run.
    pub(super) fn word(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Passed => ("passed", None),
            Self::Failed(_) => ("failed", None),
            Self::Unsupported(reason) => ("unsupported", Some(reason)),
            Self::NotRun(reason) => ("not-run", Some(reason)),
        }
    }
}

impl Report {
    /// How many cases ended how.
    pub fn counts(&self) -> Counts {
        Counts::of(self.entries.iter().map(|entry| &entry.verdict))
    }

    /// How many cases passed.
    pub fn passed(&self) -> usize {
        self.counts().passed
    }

    /// How many cases failed.
    pub fn failed(&self) -> usize {
        self.counts().failed
    }

    /// How many cases need what the implementation does not do.
    pub fn unsupported(&self) -> usize {
        self.counts().unsupported
    }

    /// How many cases were left out.
    pub fn not_run(&self) -> usize {
        self.counts().not_run
    }

    /// The cases that failed, with the first difference of each.
    pub fn failures(&self) -> impl Iterator<Item = (&Entry, &Difference)> {
        self.entries.iter().filter_map(|entry| match &entry.verdict {
            Verdict::Failed(difference) => Some((entry, &**difference)),
            Verdict::Passed | Verdict::Unsupported(_) | Verdict::NotRun(_) => None,
        })
    }

    /// Whether the implementation conforms: no case failed, and at least one passed.
    pub fn conforms(&self) -> bool {
        self.failed() == 0 && self.passed() > 0
    }

    /// What is wrong in the cases that failed, and what those with the same flaw have in common.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut failed: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
        for (entry, difference) in self.failures() {
            failed.entry(difference.flaw()).or_default().push(entry);
        }
        let passed: Vec<_> = self.entries.iter().filter(|entry| entry.verdict == Verdict::Passed).collect();
        let flaw = |(flaw, failed): (String, Vec<&Entry>)| {
            let passed = || passed.iter().filter(|entry| entry.tells || !failed.iter().any(|entry| entry.tells));
            let tells = |(name, value): &(&&str, &String)| {
                let has = |entry: &&Entry| entry.properties.get(**name) == Some(*value);
                failed.iter().all(has) && !passed().any(has)
            };
            let telling = failed[0].properties.iter().filter(tells).take(MOST_CONDITIONS);
            let only_where = telling.map(|(name, value)| format!("{name} is {value}")).collect();
            Flaw { flaw, cases: failed.len(), only_where }
        };
        failed.into_iter().map(flaw).collect()
    }
}

/// A case that failed alone has many a property that no other has.
const MOST_CONDITIONS: usize = 3;

/// Something that is wrong in some cases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Flaw {
    /// What is wrong.
    pub flaw: String,
    /// In how many cases.
    pub cases: usize,
    /// Properties that all these cases have, and none that passed has. Where one of legal calls failed, those that
    /// passed with illegal calls, or with empty outputs, do not count.
    pub only_where: Vec<String>,
}

/// How many cases ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many need what the implementation does not do.
    pub unsupported: usize,
    /// How many were left out.
    pub not_run: usize,
}

/// What became of the cases that prove a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule.
    pub rule: &'static Rule,
    /// How many of its cases ended how.
    pub cases: Counts,
}

impl Counts {
    pub(super) fn of<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> Self {
        let mut counts = Self::default();
        for verdict in verdicts {
            *match verdict {
                Verdict::Passed => &mut counts.passed,
                Verdict::Failed(_) => &mut counts.failed,
                Verdict::Unsupported(_) => &mut counts.unsupported,
                Verdict::NotRun(_) => &mut counts.not_run,
            } += 1;
        }
        counts
    }
}

impl Report {
    /// The rules of the operators of the cases, operator by operator, with what became of the cases that prove each.
    pub fn by_rule(&self) -> Vec<RuleCount> {
        let mut verdicts: HashMap<(Operator, &str), Vec<&Verdict>> = HashMap::new();
        for entry in &self.entries {
            for rule in &entry.rules {
                verdicts.entry((entry.operator, rule)).or_default().push(&entry.verdict);
            }
        }
        let tested = |operator: &Operator| self.entries.iter().any(|entry| entry.operator == *operator);
        let count = |rule: &'static Rule| {
            let verdicts = verdicts.get(&(rule.operator, rule.id.as_str())).into_iter().flatten();
            RuleCount { rule, cases: Counts::of(verdicts.copied()) }
        };
        Operator::ALL.into_iter().filter(tested).flat_map(rules).map(count).collect()
    }
}
