//! All known mistakes in one list.

use std::sync::LazyLock;

use super::mistake::Mistake;
use super::{
    accepted, accepted_inputs, addressing, arithmetic, nibbles, order, paging, refused, rounding, scales, storage,
    values,
};
use crate::oracle::Inputs;

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
