//! The rules that cases prove: the entries of the schemas, each with its place on the operator's page.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_yaml::Value;

use crate::case::Operator;

/// A rule of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What cases call it: words like `quantizing.epsilon`, unique among the rules of its operator.
    pub id: String,
    /// What a reader calls it.
    pub title: String,
    /// What it says.
    pub text: String,
    /// The operator that cases prove it of.
    pub operator: Operator,
    /// Whose page states it: an earlier operator's, if the schema says `as_in`.
    pub page: Operator,
    /// Why no case can fail where this rule alone is broken, if that is so.
    pub not_proven_by_cases: Option<String>,
}

impl Rule {
    /// Where the rule is stated, below the folder of the pages: `KeyValueCache.md#rule-quantizing.epsilon`.
    pub fn link(&self) -> String {
        format!("{}.md#rule-{}", self.page.name(), self.id)
    }
}

/// The rules of an operator, in the order of its page but for those of modes and layouts, which come first.
pub fn rules(operator: Operator) -> &'static [Rule] {
    &RULES[&operator]
}

/// The rule of an operator that cases call `id`.
pub fn rule(operator: Operator, id: &str) -> Option<&'static Rule> {
    rules(operator).iter().find(|rule| rule.id == id)
}

static RULES: LazyLock<BTreeMap<Operator, Vec<Rule>>> = LazyLock::new(|| {
    let mut rules = BTreeMap::new();
    for operator in Operator::ALL {
        let schema: Value = serde_yaml::from_str(operator.schema()).expect("a schema is YAML");
        rules.insert(operator, of_schema(operator, &schema, &rules));
    }
    rules
});

/// The rules of a schema: the rows of its tables, then its entries. With `as_in`, those of an earlier operator.
fn of_schema(operator: Operator, schema: &Value, earlier: &BTreeMap<Operator, Vec<Rule>>) -> Vec<Rule> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let as_in = |value: &Value, is_it: &dyn Fn(&Rule) -> bool| -> Option<Vec<Rule>> {
        let name = value["as_in"].as_str()?;
        let (_, rules) =
            earlier.iter().find(|(other, _)| other.name() == name).expect("as_in names an earlier operator");
        Some(rules.iter().filter(|rule| is_it(rule)).map(|rule| Rule { operator, ..rule.clone() }).collect())
    };
    let mut rules = Vec::new();
    for (table, rows) in [("cache-mode", &schema["cache_modes"]), ("cache-layout", &schema["cache_layouts"])] {
        let row = |row: &Value| {
            let (code, name) = (row["code"].as_u64().expect("a code"), row["name"].as_str().expect("a name"));
            Rule {
                id: format!("{table}.{code}"),
                title: format!("{} {code}, {name}", table.replace('-', "_")),
                text: text(&row["meaning"]).unwrap_or_else(|| axes(&row["axes"])),
                operator,
                page: operator,
                not_proven_by_cases: None,
            }
        };
        let own = || rows.as_sequence().into_iter().flatten().map(row).collect();
        rules.extend(as_in(rows, &|rule| rule.id.starts_with(&format!("{table}."))).unwrap_or_else(own));
    }
    for entry in schema["rules"].as_sequence().expect("a schema has rules") {
        let id = entry["id"].as_str().expect("a rule has an id");
        let own = || {
            vec![Rule {
                id: id.to_owned(),
                title: text(&entry["title"]).expect("a rule has a title"),
                text: text(&entry["text"]).expect("a rule has a text"),
                operator,
                page: operator,
                not_proven_by_cases: text(&entry["not_proven_by_cases"]),
            }]
        };
        rules.extend(as_in(entry, &|rule| rule.id == id).unwrap_or_else(own));
    }
    rules
}

fn axes(axes: &Value) -> String {
    let axis = |axis: &Value| axis.as_u64().map_or_else(|| axis.as_str().unwrap_or_default().into(), |n| n.to_string());
    let axes: Vec<_> = axes.as_sequence().into_iter().flatten().map(axis).collect();
    format!("`cache` has the axes ({}, Dh).", axes.join(", "))
}
