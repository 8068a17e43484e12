//! What became of the cases of each rule.

use std::collections::HashMap;

use super::entry::{Report, Verdict};
use crate::rules::{OperatorPage, Rule, rules};

/// How many of the cases that prove a rule ended how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule.
    pub rule: &'static Rule,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many need what the implementation does not do.
    pub unsupported: usize,
    /// How many were left out.
    pub not_run: usize,
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
            let mut counts = RuleCount { rule, passed: 0, failed: 0, unsupported: 0, not_run: 0 };
            for verdict in verdicts.get(&(rule.page, &rule.id)).into_iter().flatten() {
                *match verdict {
                    Verdict::Passed => &mut counts.passed,
                    Verdict::Failed(..) => &mut counts.failed,
                    Verdict::Unsupported(_) => &mut counts.unsupported,
                    Verdict::NotRun(_) => &mut counts.not_run,
                } += 1;
            }
            counts
        };
        pages.flat_map(rules).map(count).collect()
    }
}

impl RuleCount {
    /// How many cases prove it.
    pub fn cases(&self) -> usize {
        self.passed + self.failed + self.unsupported + self.not_run
    }
}
