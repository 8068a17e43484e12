//! The diagnosis of a run, and how it is told: also of failures that no mistake explains, by what is wrong with them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use super::scope::Scope;
use crate::difference::{Difference, Mismatch};

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

/// Refusals with as many different messages are told apart; the others together.
const MOST_MESSAGES: usize = 6;

/// As much of a message is shown.
const MOST_LETTERS: usize = 200;

/// Failures with one flaw.
#[derive(Debug, Clone)]
pub struct Group {
    /// What is wrong, as the end of a sentence.
    pub flaw: String,
    /// The names of the cases.
    pub cases: Vec<String>,
    /// What the cases have in common, and those that passed have not.
    pub scope: Scope,
}

/// Divides failures by what is wrong: refused legal calls first, of each the flaw of most cases first.
pub(super) fn groups(failed: &BTreeMap<usize, Option<Difference>>) -> Vec<(String, Vec<usize>)> {
    let mut refused = BTreeMap::<String, (String, Vec<usize>)>::new();
    let mut others = BTreeMap::<&str, (String, Vec<usize>)>::new();
    let mut made = BTreeMap::<&str, usize>::new();
    for (&case, difference) in failed {
        let flaw = match difference.as_ref().map(|difference| &difference.mismatch) {
            Some(Mismatch::Refused { message, .. }) => {
                // Refusals for one reason differ in their numbers.
                let wording = message.chars().filter(|c| c.is_alphabetic()).collect();
                let start: String = message.chars().take(MOST_LETTERS).collect();
                let flaw = || (format!("of legal calls that were refused, saying {start:?}."), Vec::new());
                refused.entry(wording).or_insert_with(flaw).1.push(case);
                continue;
            }
            None | Some(Mismatch::CouldNotRun { .. }) => "of cases that could not be run.",
            Some(Mismatch::NotRefused { expected }) => {
                *made.entry(expected.as_deref().unwrap_or_default()).or_default() += 1;
                "of illegal calls that were made: expected"
            }
            Some(Mismatch::RefusedAs { .. } | Mismatch::NotMentioned { .. }) => {
                "of illegal calls that were refused as something else."
            }
            Some(_) => "what no known mistake gives.",
        };
        others.entry(flaw).or_insert_with(|| (flaw.to_owned(), Vec::new())).1.push(case);
    }
    let expected: Vec<_> = made.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
    if let Some((flaw, _)) = others.get_mut("of illegal calls that were made: expected") {
        *flaw += &format!(" {}.", expected.join(", "));
    }
    let (mut told, mut others): (Vec<_>, Vec<_>) = (refused.into_values().collect(), others.into_values().collect());
    told.sort_by_key(|(_, cases)| Reverse(cases.len()));
    others.sort_by_key(|(_, cases)| Reverse(cases.len()));
    if told.len() > MOST_MESSAGES {
        let rest = told.split_off(MOST_MESSAGES).into_iter().flat_map(|(_, cases)| cases).collect();
        told.push(("of legal calls that were refused, with other messages.".to_owned(), rest));
    }
    told.append(&mut others);
    told
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.flaw, self.scope.sentence())
    }
}
