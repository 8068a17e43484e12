//! A known mistake.

use crate::oracle::{Behavior, Oracle};

/// A mistake that implementations make.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// Its name, in words with hyphens.
    pub name: &'static str,
    /// What is probably wrong, and where to look for it.
    pub about: &'static str,
    /// The rule of `KeyValueCache` that it breaks; `None` if it cannot be made there.
    pub rule: Option<&'static str>,
    /// The same of static batching.
    pub static_rule: Option<&'static str>,
    /// The rule of the attention operators that it breaks, if it is not that of `KeyValueCache`.
    pub attention_rule: Option<&'static str>,
    /// What it changes.
    pub(super) change: fn(&mut Behavior),
}

impl Mistake {
    /// A mistake that both operators can have, against a rule that both have.
    pub(super) const fn new(
        rule: &'static str,
        name: &'static str,
        about: &'static str,
        change: fn(&mut Behavior),
    ) -> Self {
        Self { name, about, rule: Some(rule), static_rule: Some(rule), attention_rule: None, change }
    }

    /// The same, of dynamic batching alone.
    pub(super) const fn dynamic(
        rule: &'static str,
        name: &'static str,
        about: &'static str,
        change: fn(&mut Behavior),
    ) -> Self {
        Self { name, about, rule: Some(rule), static_rule: None, attention_rule: None, change }
    }

    /// The same, of static batching alone.
    pub(super) const fn of_static(
        rule: &'static str,
        name: &'static str,
        about: &'static str,
        change: fn(&mut Behavior),
    ) -> Self {
        Self { name, about, rule: None, static_rule: Some(rule), attention_rule: None, change }
    }

    /// The same, of attention alone.
    pub(super) const fn of_attention(
        rule: &'static str,
        name: &'static str,
        about: &'static str,
        change: fn(&mut Behavior),
    ) -> Self {
        Self { name, about, rule: None, static_rule: None, attention_rule: Some(rule), change }
    }

    /// With another rule in attention.
    pub(super) const fn attention_rule(mut self, rule: &'static str) -> Self {
        self.attention_rule = Some(rule);
        self
    }

    /// With another rule in static batching.
    pub(super) const fn static_rule(mut self, rule: &'static str) -> Self {
        self.static_rule = Some(rule);
        self
    }

    /// In dynamic batching alone.
    pub(super) const fn only_dynamic(mut self) -> Self {
        self.static_rule = None;
        self
    }

    /// In static batching alone.
    pub(super) const fn only_static(mut self) -> Self {
        self.rule = None;
        self
    }

    /// The oracle that makes this mistake and no other.
    pub fn oracle(&self) -> Oracle {
        Self::oracle_of(&[self])
    }

    /// The oracle that makes these mistakes. Of two that change the same decision, the last counts.
    pub fn oracle_of(mistakes: &[&Self]) -> Oracle {
        let mut oracle = Oracle::default();
        mistakes.iter().for_each(|mistake| (mistake.change)(&mut oracle.behavior));
        oracle
    }
}
