//! Failures that no mistake explains, by what is wrong with them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use super::scope::Scope;
use crate::difference::{Difference, Mismatch};

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
