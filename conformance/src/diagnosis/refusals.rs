//! Legal calls of a run that were refused, and whether a mistake explains them.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnosable::MadeCall;

/// A mistake that refuses legal calls is not named if it is more likely that those were refused by chance.
const MOST_LIKELY_BY_CHANCE: f64 = 0.05;

/// A mistake that refuses legal calls explains at least one of so many refusals that nothing else explains.
const LEAST_PART: usize = 3;

/// What an implementation said when it refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error, if it has kinds.
    kind: Option<String>,
    /// The letters of its message: refusals with one reason differ in their numbers.
    wording: String,
}

impl Refusal {
    pub(super) fn new(kind: Option<&str>, message: &str) -> Self {
        Self { kind: kind.map(str::to_owned), wording: message.chars().filter(|c| c.is_alphabetic()).collect() }
    }

    /// Whether the error may be of this kind.
    pub(super) fn has_kind(&self, kind: &str) -> bool {
        self.kind.as_deref().is_none_or(|own| own == kind)
    }
}

/// The cases of legal calls of which one was refused.
pub(super) struct Refusals {
    /// What the first refusal of each said.
    wordings: BTreeMap<usize, String>,
    /// How many cases of legal calls there are.
    legal: usize,
}

impl Refusals {
    /// `passed` and `failed` are cases of legal calls, with what the calls of the failed ones did.
    pub(super) fn new<'a, M: MadeCall + 'a>(
        passed: usize,
        failed: impl Iterator<Item = (usize, Option<&'a [M]>)>,
    ) -> Self {
        let (mut wordings, mut legal) = (BTreeMap::new(), passed);
        for (case, made) in failed {
            legal += 1;
            if let Some(refusal) = made.and_then(|made| made.iter().find_map(M::refusal)) {
                wordings.insert(case, refusal.wording.clone());
            }
        }
        Self { wordings, legal }
    }

    /// These cases, divided by what their refusals say.
    pub(super) fn by_wording<F: Copy>(&self, cases: &BTreeMap<usize, F>) -> Vec<BTreeMap<usize, F>> {
        let mut divided = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (case, fit) in cases {
            divided.entry(self.wordings.get(case)).or_default().insert(*case, *fit);
        }
        divided.into_values().collect()
    }

    /// Whether a mistake that explains the refusals of `cases` is worth naming, if `is_left` says which cases nothing
    /// else explains and there are so many `candidates`.
    ///
    /// It is to explain enough of the refusals: of those that say the same if what it explains does, of all if not. One
    /// that explains a small part alone is likelier to be something that goes along with the reason.
    pub(super) fn are_explained_by(
        &self,
        cases: impl Iterator<Item = usize> + Clone,
        is_left: impl Fn(usize) -> bool,
        candidates: usize,
    ) -> bool {
        let explained: BTreeSet<_> = cases.clone().collect();
        let said: BTreeSet<_> = cases.map(|case| self.wordings.get(&case)).collect();
        let of_one_reason = said.len() == 1 && !said.contains(&None);
        let alike = || self.wordings.iter().filter(|(_, wording)| !of_one_reason || said.contains(&Some(wording)));
        if LEAST_PART * explained.len() < alike().filter(|(case, _)| is_left(**case)).count() {
            return false;
        }
        // That all of them are among the refusals of any one reason, for any of so many candidates.
        let reasons = if of_one_reason { self.wordings.values().collect::<BTreeSet<_>>().len() } else { 1 };
        let share = alike().count() as f64 / self.legal.max(1) as f64;
        let by_chance = share.powi(explained.len() as i32) * (reasons * candidates) as f64;
        by_chance < MOST_LIKELY_BY_CHANCE
            || self.wordings.keys().filter(|case| is_left(**case)).all(|case| explained.contains(case))
    }
}
