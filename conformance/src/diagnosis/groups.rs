//! Failures that no mistake explains, by what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;

use super::scope::Scope;
use crate::difference::{Difference, Elements, Mismatch};

/// Refusals with as many different messages are told apart; the others together.
const MOST_MESSAGES: usize = 6;

/// As much of a message is shown.
const MOST_LETTERS: usize = 200;

/// What is wrong with failures that nothing explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Legal calls were refused with messages that differ in their numbers alone.
    Refused {
        /// The first message; `None` of refusals with many different ones.
        message: Option<String>,
    },
    /// Illegal calls were made, that were expected to be refused with errors of these kinds.
    Made {
        /// How often each kind was expected.
        expected: BTreeMap<String, usize>,
    },
    /// Illegal calls were refused with another kind of error, or message, than expected.
    RefusedOtherwise,
    /// A case could not be run.
    NotRun,
    /// Calls gave something else.
    Other,
}

/// Failures with one flaw.
#[derive(Debug, Clone)]
pub struct Group {
    /// What is wrong.
    pub flaw: Flaw,
    /// The names of the cases.
    pub cases: Vec<String>,
    /// What the cases have in common, and those that passed have not.
    pub scope: Scope,
}

/// Whether a refused call changed the state.
pub(super) fn is_refused_late(difference: Option<&Difference>) -> bool {
    difference.is_some_and(|difference| match &difference.mismatch {
        Mismatch::Form { refused, .. } => *refused,
        Mismatch::Elements(elements) => matches!(**elements, Elements { refused: true, .. }),
        _ => false,
    })
}

/// Divides failures by their flaws: those of most cases first.
pub(super) fn groups(failed: &BTreeMap<usize, Option<Difference>>) -> Vec<(Flaw, Vec<usize>)> {
    let mut groups = BTreeMap::<(u8, String), (Flaw, Vec<usize>)>::new();
    for (&case, difference) in failed {
        let (key, flaw) = match difference.as_ref().map(|difference| &difference.mismatch) {
            None | Some(Mismatch::CouldNotRun { .. }) => ((3, String::new()), Flaw::NotRun),
            Some(Mismatch::Refused { message, .. }) => {
                // Refusals for one reason differ in their numbers.
                let wording = message.chars().filter(|c| c.is_alphabetic()).collect();
                ((0, wording), Flaw::Refused { message: Some(message.chars().take(MOST_LETTERS).collect()) })
            }
            Some(Mismatch::NotRefused { .. }) => ((1, String::new()), Flaw::Made { expected: BTreeMap::new() }),
            Some(Mismatch::RefusedAs { .. } | Mismatch::NotMentioned { .. }) => {
                ((2, String::new()), Flaw::RefusedOtherwise)
            }
            Some(_) => ((4, String::new()), Flaw::Other),
        };
        let (flaw, cases) = groups.entry(key).or_insert((flaw, Vec::new()));
        cases.push(case);
        if let (Flaw::Made { expected }, Some(Mismatch::NotRefused { expected: Some(kind) })) =
            (flaw, difference.as_ref().map(|difference| &difference.mismatch))
        {
            *expected.entry(kind.clone()).or_default() += 1;
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|(_, cases)| std::cmp::Reverse(cases.len()));
    let is_refused = |flaw: &Flaw| matches!(flaw, Flaw::Refused { .. });
    let (refused, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(flaw, _)| is_refused(flaw));
    let mut refused = refused.into_iter();
    let mut told: Vec<_> = refused.by_ref().take(MOST_MESSAGES).collect();
    let rest: Vec<_> = refused.flat_map(|(_, cases)| cases).collect();
    if !rest.is_empty() {
        told.push((Flaw::Refused { message: None }, rest));
    }
    told.append(&mut others);
    told
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.flaw {
            Flaw::Refused { message: Some(message) } => {
                write!(f, "of legal calls that were refused, saying {message:?}.")?;
            }
            Flaw::Refused { message: None } => f.write_str("of legal calls that were refused, with other messages.")?,
            Flaw::Made { expected } => {
                let kinds: Vec<_> = expected.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
                write!(f, "of illegal calls that were made: expected {}.", kinds.join(", "))?;
            }
            Flaw::RefusedOtherwise => f.write_str("of illegal calls that were refused as something else.")?,
            Flaw::NotRun => f.write_str("of cases that could not be run.")?,
            Flaw::Other => f.write_str("what no known mistake gives.")?,
        }
        f.write_str(&self.scope.sentence())
    }
}
