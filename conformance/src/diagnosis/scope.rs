//! In which part of an implementation a mistake is made: what the cases that it explains have in common.

use std::fmt;

use crate::case::Case;
use crate::oracle::Inputs;
use crate::suite::Features;

/// What of a case can tell parts of an implementation apart.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The types, by name.
    types: [(&'static str, &'static str); 3],
    /// Attributes and sizes.
    numbers: Vec<(&'static str, i64)>,
}

/// Conditions on a case that hold together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope(Vec<Condition>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Type(&'static str, &'static str),
    Is(&'static str, i64),
    AtLeast(&'static str, i64),
}

/// More conditions describe a coincidence rather than a part of an implementation.
const MOST_CONDITIONS: usize = 3;

impl Facts {
    pub(super) fn of<A, I: Inputs<A>>(case: &Case<A, I>) -> Self {
        let types = [
            ("T1", case.types.t1.name()),
            ("T2", case.types.t2.name()),
            ("T3", case.types.t3.map_or("absent", |t3| t3.name())),
        ];
        let mut numbers = I::named_attributes(&case.attributes);
        // They say which part of the cache a call is given, and no code depends on them.
        numbers.retain(|(name, _)| *name != "layer_idx");
        let size = |i| {
            case.steps.first().and_then(|step: &crate::Step<I>| step.inputs.current()[0].shape().iter().rev().nth(i))
        };
        numbers.extend(size(0).map(|&head_dim| ("head_dim", head_dim as i64)));
        numbers.extend(size(1).map(|&num_heads| ("num_heads", num_heads as i64)));
        Self { types, numbers }
    }
}

impl Facts {
    /// What the features of a case say.
    pub(super) fn of_features(features: &Features) -> Self {
        let of_type = |name| (name, features.types.get(name).map_or("absent", |element| element.name()));
        let numbers = features.numbers.iter().map(|(&name, &value)| (name, value));
        let parts = numbers.filter(|(name, _)| !["layer_idx", "batch"].contains(name));
        Self { types: ["T1", "T2", "T3"].map(of_type), numbers: parts.collect() }
    }
}

impl Condition {
    fn holds(self, facts: &Facts) -> bool {
        let number = |name| facts.numbers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        match self {
            Self::Type(name, value) => facts.types.contains(&(name, value)),
            Self::Is(name, value) => number(name) == Some(value),
            Self::AtLeast(name, value) => number(name).is_some_and(|number| number >= value),
        }
    }
}

impl Scope {
    /// The conditions that hold in all cases of `inside` and exclude the most of `others`; as few as possible.
    pub(super) fn around(inside: &[&Facts], others: &[&Facts]) -> Self {
        let Some((first, rest)) = inside.split_first() else { return Self::default() };
        let types = first.types.iter().map(|&(name, value)| Condition::Type(name, value));
        let least = |name: &str| {
            let number =
                |facts: &&&Facts| facts.numbers.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
            inside.iter().filter_map(|facts| number(&facts)).min()
        };
        let numbers = first.numbers.iter().flat_map(|&(name, value)| {
            [Some(Condition::Is(name, value)), least(name).map(|least| Condition::AtLeast(name, least))]
        });
        let shared: Vec<_> = types
            .chain(numbers.flatten())
            .filter(|condition| rest.iter().all(|facts| condition.holds(facts)))
            .collect();
        let mut scope = Self::default();
        let mut left: Vec<_> = others.to_vec();
        while !left.is_empty() && scope.0.len() < MOST_CONDITIONS {
            let excluded = |condition: &Condition| left.iter().filter(|facts| !condition.holds(facts)).count();
            // The first of the best: types before attributes, an exact value before a bound.
            let Some(best) = shared.iter().rev().max_by_key(|condition| excluded(condition)) else { break };
            if excluded(best) == 0 {
                break;
            }
            scope.0.push(*best);
            left.retain(|facts| best.holds(facts));
        }
        scope
    }

    /// Whether all conditions hold.
    pub(super) fn contains(&self, facts: &Facts) -> bool {
        self.0.iter().all(|condition| condition.holds(facts))
    }

    /// How many conditions it has.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, condition) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" and ")?;
            }
            match condition {
                Condition::Type(name, value) => write!(f, "{name} is {value}")?,
                Condition::Is(name, value) => write!(f, "{name} is {value}")?,
                Condition::AtLeast(name, value) => write!(f, "{name} is at least {value}")?,
            }
        }
        Ok(())
    }
}
