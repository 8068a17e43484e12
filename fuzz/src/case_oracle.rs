//! What a case must be by its `case.yaml`, read without the suite's types.

use kvcache_conformance::{Case, Expected, OperatorPage, rule};
use kvcache_op::schema::static_key_value_cache::DOMAINS;
use kvcache_op::{Attributes, ElementType, StaticAttributes};
use serde_yaml::Value;

/// The attributes of an operator by name.
pub trait Named {
    /// The operator's page.
    const PAGE: OperatorPage;
    /// What a case says of its domain.
    const DOMAIN: Option<&'static str>;

    /// All attributes.
    fn named(&self) -> Vec<(&'static str, i64)>;
}

impl Named for Attributes {
    const PAGE: OperatorPage = OperatorPage::KeyValueCache;
    const DOMAIN: Option<&'static str> = None;

    fn named(&self) -> Vec<(&'static str, i64)> {
        vec![
            ("num_layer", self.num_layer),
            ("layer_idx", self.layer_idx),
            ("quant_bit", self.quant_bit),
            ("quant_group", self.quant_group),
            ("num_repeat", self.num_repeat),
            ("cache_mode", self.cache_mode),
            ("cache_layout", self.cache_layout),
            ("page_size", self.page_size),
        ]
    }
}

impl Named for StaticAttributes {
    const PAGE: OperatorPage = OperatorPage::StaticKeyValueCache;
    const DOMAIN: Option<&'static str> = Some(DOMAINS[0]);

    fn named(&self) -> Vec<(&'static str, i64)> {
        vec![
            ("num_layer", self.num_layer),
            ("layer_idx", self.layer_idx),
            ("quant_bit", self.quant_bit),
            ("quant_group", self.quant_group),
            ("num_repeat", self.num_repeat),
            ("cache_layout", self.cache_layout),
        ]
    }
}

/// Fails if a case is not what its text says, or what no case may be.
pub fn is_as_in_the_text<A: Named + Default, I>(case: &Case<A, I>, yaml: &[u8]) {
    let text: Value = serde_yaml::from_slice(yaml).expect("a text that was read");
    assert_eq!(text["about"].as_str(), Some(case.about.as_str()));
    assert_eq!(text.get("domain").and_then(Value::as_str), A::DOMAIN, "the domain");

    let rules: Vec<_> = text["rules"].as_sequence().into_iter().flatten().map(|rule| rule.as_str()).collect();
    assert!(case.rules.iter().map(|rule| Some(rule.as_str())).eq(rules), "rules: {:?}", case.rules);
    assert!(case.rules.iter().all(|id| rule(A::PAGE, id).is_some()), "rules: {:?}", case.rules);

    let element = |name: &str| text["types"].get(name).and_then(Value::as_str);
    let names = [element("T1"), element("T2"), element("T3")];
    let types = [Some(case.types.t1), Some(case.types.t2), case.types.t3];
    assert_eq!(types.map(|element| element.map(ElementType::name)), names, "types");

    // Each is the text's, or else the default.
    let given = text.get("attributes").and_then(Value::as_mapping);
    let (got, default) = (case.attributes.named(), A::default().named());
    for ((name, got), (_, default)) in got.iter().zip(default) {
        let value = given.and_then(|given| given.get(*name)).map_or(Some(default), Value::as_i64);
        assert_eq!(Some(*got), value, "{name}");
    }
    let known = |name: &Value| got.iter().any(|(known, _)| name.as_str() == Some(known));
    assert!(given.is_none_or(|given| given.keys().all(known)), "attributes that there are not: {given:?}");

    let steps = text["steps"].as_sequence().map_or(&[][..], Vec::as_slice);
    assert!(!steps.is_empty() && steps.len() == case.steps.len(), "{} steps of {}", case.steps.len(), steps.len());
    for (i, (step, text)) in case.steps.iter().zip(steps).enumerate() {
        let kind = match &step.expected {
            Expected::Refusal { kind, .. } => Some(kind.as_str()),
            Expected::Success(_) => None,
        };
        assert_eq!(kind, text.get("error").and_then(Value::as_str), "what is expected of step {i}");
    }
}
