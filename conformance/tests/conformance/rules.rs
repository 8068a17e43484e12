//! Rules and cases belong together: every rule is proven by a case, every case proves a rule.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_conformance::{OperatorPage, Suite, rules};

use crate::answers::{ATTENTION, DYNAMIC, STATIC};

/// The cases of all suites that name a rule of each page, by the rule.
fn named() -> BTreeMap<OperatorPage, BTreeMap<String, Vec<String>>> {
    fn of<C: Suite>(cases: &[C]) -> impl Iterator<Item = (OperatorPage, String, Vec<String>)> {
        cases.iter().map(|case| (case.page(), case.name().to_owned(), case.rules().to_vec()))
    }
    let mut named: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
    for (page, name, rules) in of(&DYNAMIC).chain(of(&STATIC)).chain(of(&ATTENTION)) {
        assert!(!rules.is_empty(), "{name} proves nothing");
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), rules.len(), "{name} names a rule twice");
        for rule in rules {
            named.entry(page).or_default().entry(rule).or_default().push(name.clone());
        }
    }
    named
}

#[test]
fn every_rule_is_proven_by_a_case_or_says_why_not() {
    let named = named();
    for page in OperatorPage::ALL {
        for rule in rules(page) {
            let cases = named[&page].get(&rule.id).map_or(0, Vec::len);
            match &rule.not_proven_by_cases {
                None => assert!(cases > 0, "no case proves {}", rule.link()),
                Some(why) => {
                    assert!(why.ends_with('.'), "{} does not say why no case proves it", rule.link());
                    assert_eq!(cases, 0, "{} is proven: {:?}", rule.link(), named[&page][&rule.id]);
                }
            }
        }
    }
}
