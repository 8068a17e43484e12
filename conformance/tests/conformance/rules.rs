//! Rules and cases belong together: every rule is stated on its page and proven by a case, every case proves a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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

#[test]
fn every_rule_has_an_id_of_its_own_and_a_place_on_its_page() {
    for page in OperatorPage::ALL {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let text = fs::read_to_string(docs.join(format!("{}.md", page.name()))).unwrap();
        let mut ids = BTreeSet::new();
        for rule in rules(page) {
            assert!(ids.insert(&rule.id), "{} has {} twice", page.name(), rule.id);
            let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(rule.id.chars().all(kebab), "{}", rule.id);
            let anchor = format!("<a id=\"rule-{}\"></a>", rule.id);
            assert_eq!(text.matches(&anchor).count(), 1, "{anchor} on {}.md", page.name());
        }
        assert!(ids.len() > 30, "{} has {} rules", page.name(), ids.len());
        assert_eq!(text.matches("<a id=\"rule-").count(), ids.len(), "{}.md has anchors of other rules", page.name());
    }
}
