//! How many cases ended how, all of them and those of each rule.

use std::collections::HashMap;

use serde::Serialize;

use super::entry::{Report, Verdict};
use crate::rules::{OperatorPage, Rule, rules};

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
