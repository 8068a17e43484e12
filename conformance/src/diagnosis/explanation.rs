//! The diagnosis of a run, and how it is told.

use std::fmt;

use super::groups::Group;
use super::scope::Scope;

/// What the failures of a run come from.
#[derive(Debug, Clone, Default)]
pub struct RunDiagnosis {
    /// How many cases failed.
    pub failed: usize,
    /// What explains them, each failure once. What explains most of those that are left comes first.
    pub explanations: Vec<Explanation>,
    /// The failed cases that nothing explains, by what is wrong with them.
    pub unexplained: Vec<Group>,
}

/// A mistake, and the failures that come from it.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The name of the mistake.
    pub mistake: &'static str,
    /// What is probably wrong, and where to look for it.
    pub about: &'static str,
    /// The rule of the operator's page that it breaks.
    pub rule: &'static str,
    /// The names of the failed cases that it explains.
    pub cases: Vec<String>,
    /// The names of the cases that passed although the mistake would be wrong there: it is then made in a part of the
    /// implementation alone, like one type or one layout.
    pub passed_nevertheless: Vec<String>,
    /// That part, as far as it can be told by types and attributes: passed cases in it are left in
    /// `passed_nevertheless`.
    pub scope: Scope,
    /// Other mistakes that explain the same failures, and are as likely.
    pub or: Vec<&'static str>,
}

impl fmt::Display for RunDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: usize| match self.failed {
            1 => "the failure is".to_owned(),
            failed => format!("{count} of {failed} failures are"),
        };
        let explained = self.explanations.iter().map(|explanation| {
            let Explanation { mistake, about, cases, passed_nevertheless, scope, or, .. } = explanation;
            let or = if or.is_empty() { String::new() } else { format!(" (or {})", or.join(", ")) };
            let part = match passed_nevertheless.len() {
                0 => String::new(),
                1 => " Not in all of the implementation: 1 case passed that it would fail.".to_owned(),
                passed => format!(" Not in all of the implementation: {passed} cases passed that it would fail."),
            };
            format!("{} what {mistake} gives{or}: {about}{}{part}", of(cases.len()), scope.sentence())
        });
        let unexplained = self.unexplained.iter().map(|group| format!("{} {group}", of(group.cases.len())));
        f.write_str(&explained.chain(unexplained).collect::<Vec<_>>().join("\n"))
    }
}
