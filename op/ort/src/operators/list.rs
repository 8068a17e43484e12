//! The list of operators.

use super::key_value_cache::KEY_VALUE_CACHE;
use super::multi_head_attention::MULTI_HEAD_ATTENTION;
use super::multi_head_cache_attention::MULTI_HEAD_CACHE_ATTENTION;
use super::static_key_value_cache::STATIC_KEY_VALUE_CACHE;
use crate::definition::Definition;

pub(crate) static OPERATORS: [&Definition; 4] =
    [&KEY_VALUE_CACHE, &MULTI_HEAD_ATTENTION, &MULTI_HEAD_CACHE_ATTENTION, &STATIC_KEY_VALUE_CACHE];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::definition::Role;

    #[test]
    fn a_name_in_a_domain_is_one_operator() {
        let names = OPERATORS
            .iter()
            .flat_map(|operator| operator.signature.domains.map(|domain| (domain, operator.signature.name)));
        assert_eq!(names.collect::<HashSet<_>>().len(), 2 * OPERATORS.len());
    }

    #[test]
    fn the_first_input_of_every_operator_is_of_t1() {
        for operator in OPERATORS {
            assert_eq!(Role::of(operator.signature.inputs[0]), Role::Rows, "{}", operator.signature.name);
        }
    }
}
