//! What became of each case, and how many ended how, all of them and those of each rule.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::difference::Difference;
use crate::rules::{OperatorPage, Rule, rules};
use crate::suite::Diagnosis;

/// What became of some cases. Displayed, it is a text for a terminal; [`json`](Self::json) gives it as JSON.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The name of what was tested.
    pub implementation: String,
    /// The name of the profile that it was judged by, if there is one.
    pub profile: Option<String>,
    /// An entry for each case, in the order of the cases.
    pub entries: Vec<Entry>,
    /// What the failures come from, if they were diagnosed: the known mistakes that explain most of them, one a line.
    pub conclusions: Vec<String>,
}

/// What became of a case.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name of its suite.
    pub suite: &'static str,
    /// The page of its operator, which states its rules.
    pub page: OperatorPage,
    /// Its name.
    pub case: String,
    /// What it tests, in words.
    pub about: String,
    /// The ids of the rules that it proves.
    pub rules: Vec<String>,
    /// What in it is outside of the profile, if something is: then it had to be refused.
    pub outside: Option<String>,
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
    Failed(Box<Difference>, Option<Diagnosis>),
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
            Self::Failed(..) => ("failed", None),
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
            Verdict::Failed(difference, _) => Some((entry, &**difference)),
            Verdict::Passed | Verdict::Unsupported(_) | Verdict::NotRun(_) => None,
        })
    }

    /// Whether the implementation conforms: no case failed, and at least one passed.
    pub fn conforms(&self) -> bool {
        self.failed() == 0 && self.passed() > 0
    }

    /// Puts the entries of another report behind those of this one.
    pub fn append(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.conclusions.extend(other.conclusions);
    }
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
                Verdict::Failed(..) => &mut counts.failed,
                Verdict::Unsupported(_) => &mut counts.unsupported,
                Verdict::NotRun(_) => &mut counts.not_run,
            } += 1;
        }
        counts
    }
}

impl Report {
    /// The rules of the operators of the cases, page by page, with what became of the cases that prove each.
    pub fn by_rule(&self) -> Vec<RuleCount> {
        let mut verdicts: HashMap<(OperatorPage, &str), Vec<&Verdict>> = HashMap::new();
        for entry in &self.entries {
            for rule in &entry.rules {
                verdicts.entry((entry.page, rule)).or_default().push(&entry.verdict);
            }
        }
        let pages = OperatorPage::ALL.into_iter().filter(|page| self.entries.iter().any(|entry| entry.page == *page));
        let count = |rule: &'static Rule| {
            let verdicts = verdicts.get(&(rule.page, &rule.id)).into_iter().flatten();
            RuleCount { rule, cases: Counts::of(verdicts.copied()) }
        };
        pages.flat_map(rules).map(count).collect()
    }
}
