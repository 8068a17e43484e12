//! All known mistakes in one list.

use std::sync::LazyLock;

use super::mistake::Mistake;
use super::{
    accepted, accepted_inputs, addressing, arithmetic, attention, nibbles, order, paging, refused, rounding, scales,
    storage, values,
};
use crate::oracle::Inputs;
use crate::rules::{OperatorPage, rule};

/// Every known mistake. One that changes little comes before one that changes the same and more: where several explain
/// a result equally well, the first is the most specific.
pub fn mistakes() -> &'static [Mistake] {
    static ALL: LazyLock<Vec<Mistake>> = LazyLock::new(|| {
        [
            rounding::MISTAKES,
            arithmetic::MISTAKES,
            values::MISTAKES,
            nibbles::MISTAKES,
            scales::MISTAKES,
            storage::MISTAKES,
            paging::MISTAKES,
            addressing::MISTAKES,
            order::MISTAKES,
            attention::precision::MISTAKES,
            attention::alibi::MISTAKES,
            attention::scores::MISTAKES,
            attention::causal::MISTAKES,
            attention::mask_elements::MISTAKES,
            attention::masks::MISTAKES,
            attention::sequences::MISTAKES,
            attention::weights::MISTAKES,
            attention::refusals::MISTAKES,
            refused::MISTAKES,
            accepted_inputs::MISTAKES,
            accepted::MISTAKES,
        ]
        .concat()
    });
    &ALL
}

/// The mistake of this name.
pub fn mistake(name: &str) -> Option<&'static Mistake> {
    mistakes().iter().find(|mistake| mistake.name == name)
}

/// The mistakes that can be made in the operator with inputs `I`, each with the rule that it breaks there.
pub fn mistakes_of<A, I: Inputs<A>>() -> impl Iterator<Item = (&'static Mistake, &'static str)> {
    mistakes().iter().filter_map(|mistake| Some((mistake, I::of(mistake.rule, mistake.static_rule)?)))
}

/// The rule of the attention operators that a mistake breaks; `None` if it cannot be made there.
///
/// What `KeyValueCache` gives, attention sees: a mistake in it breaks the same rule or, where the attention operators
/// have not got that, their equivalence to `KeyValueCache` and then attention.
pub fn attention_rule(mistake: &Mistake) -> Option<&'static str> {
    let of_cache = || match mistake.rule? {
        // There num_repeat is 1.
        "num-repeat" => None,
        of_cache if rule(OperatorPage::MultiHeadCacheAttention, of_cache).is_some() => Some(of_cache),
        _ => Some("equivalence"),
    };
    mistake.attention_rule.or_else(of_cache)
}
