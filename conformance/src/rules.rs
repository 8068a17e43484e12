//! The rules that cases prove: the entries of the schemas, each with its place on the operator's page.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_yaml::Value;

use crate::case::Operator;
use crate::schema::schemas;

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

/// The rules of an operator, in the order of its page, except that modes and layouts come first.
pub fn rules(operator: Operator) -> &'static [Rule] {
    &RULES[&operator]
}

/// The rule of an operator that cases call `id`.
pub fn rule(operator: Operator, id: &str) -> Option<&'static Rule> {
    rules(operator).iter().find(|rule| rule.id == id)
}

static RULES: LazyLock<BTreeMap<Operator, Vec<Rule>>> = LazyLock::new(|| {
    let rules = |(operator, schema): (Operator, Value)| (operator, of_schema(operator, &schema));
    schemas().into_iter().map(rules).collect()
});

/// The rules of a schema: the rows of its tables, then its entries.
fn of_schema(operator: Operator, schema: &Value) -> Vec<Rule> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    // What another operator's schema says is on that operator's page.
    let rule = |entry: &Value, id: String, title: String, says: String| Rule {
        id,
        title,
        text: says,
        operator,
        page: Operator::ALL.into_iter().find(|other| entry["as_in"] == other.name()).unwrap_or(operator),
        not_proven_by_cases: text(&entry["not_proven_by_cases"]),
    };
    let mut rules = Vec::new();
    for (table, rows) in [("cache-mode", &schema["cache_modes"]), ("cache-layout", &schema["cache_layouts"])] {
        rules.extend(rows.as_sequence().into_iter().flatten().map(|row| {
            let (code, name) = (row["code"].as_u64().expect("a code"), row["name"].as_str().expect("a name"));
            let title = format!("{} {code}, {name}", table.replace('-', "_"));
            rule(row, format!("{table}.{code}"), title, text(&row["meaning"]).unwrap_or_else(|| axes(&row["axes"])))
        }));
    }
    let entries = schema["rules"].as_sequence().expect("a schema has rules").iter();
    rules.extend(entries.map(|entry| {
        let [id, title, says] = ["id", "title", "text"].map(|key| text(&entry[key]).expect("a rule has all three"));
        rule(entry, id, title, says)
    }));
    rules
}

fn axes(axes: &Value) -> String {
    let axis = |axis: &Value| axis.as_u64().map_or_else(|| axis.as_str().unwrap_or_default().into(), |n| n.to_string());
    let axes: Vec<_> = axes.as_sequence().into_iter().flatten().map(axis).collect();
    format!("`cache` has the axes ({}, Dh).", axes.join(", "))
}
