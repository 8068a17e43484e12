//! The rules that cases prove: the entries of the schemas, each with its place on the operator's page.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

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
    /// The operator, whose page states it.
    pub operator: Operator,
    /// Why no case can fail where this rule alone is broken, if that is so.
    pub not_proven_by_cases: Option<String>,
}

impl Rule {
    /// Where the rule is stated, below the folder of the pages: `KeyValueCache.md#rule-quantizing.epsilon`.
    pub fn link(&self) -> String {
        format!("{}.md#rule-{}", self.operator.name(), self.id)
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

static RULES: LazyLock<HashMap<Operator, Vec<Rule>>> = LazyLock::new(|| {
    let mut schemas = HashMap::new();
    for operator in Operator::ALL {
        let mut schema: SchemaFile = serde_yaml::from_str(operator.schema()).expect("a schema has rules");
        schema.take_over(&schemas);
        schemas.insert(operator.name().to_owned(), schema);
    }
    Operator::ALL.into_iter().map(|operator| (operator, schemas[operator.name()].rules(operator))).collect()
});

#[derive(Deserialize)]
struct SchemaFile {
    #[serde(default)]
    cache_modes: TableFile,
    #[serde(default)]
    cache_layouts: TableFile,
    rules: Vec<RuleFile>,
}

/// An entry of `rules`; with `as_in`, that of another operator.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    id: String,
    as_in: Option<String>,
    #[serde(rename = "section")]
    _section: Option<String>,
    title: Option<String>,
    text: Option<String>,
    not_proven_by_cases: Option<String>,
}

/// A table whose rows are rules.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum TableFile {
    AsIn { as_in: String },
    Rows(Vec<RowFile>),
}

#[derive(Clone, Deserialize)]
struct RowFile {
    code: i64,
    name: String,
    meaning: Option<String>,
    axes: Option<Vec<serde_yaml::Value>>,
}

impl Default for TableFile {
    fn default() -> Self {
        Self::Rows(Vec::new())
    }
}

impl SchemaFile {
    /// Replaces every `as_in` by what the schema of that name says.
    fn take_over(&mut self, earlier: &HashMap<String, Self>) {
        let of = |name: &str| earlier.get(name).expect("as_in names an earlier operator");
        for rule in &mut self.rules {
            if let Some(name) = &rule.as_in {
                let origin = of(name).rules.iter().find(|origin| origin.id == rule.id);
                *rule = origin.expect("as_in names an operator that has the rule").clone();
            }
        }
        if let TableFile::AsIn { as_in } = &self.cache_modes {
            self.cache_modes = of(as_in).cache_modes.clone();
        }
        if let TableFile::AsIn { as_in } = &self.cache_layouts {
            self.cache_layouts = of(as_in).cache_layouts.clone();
        }
    }

    fn rules(&self, operator: Operator) -> Vec<Rule> {
        let tables = [("cache-mode", &self.cache_modes), ("cache-layout", &self.cache_layouts)];
        let rows = tables.into_iter().flat_map(|(table, file)| {
            let TableFile::Rows(rows) = file else { unreachable!("every as_in is replaced") };
            rows.iter().map(move |row| Rule {
                id: format!("{table}.{}", row.code),
                title: format!("{} {}, {}", table.replace('-', "_"), row.code, row.name),
                text: row.meaning.clone().unwrap_or_else(|| axes(row)),
                operator,
                not_proven_by_cases: None,
            })
        });
        let entries = self.rules.iter().map(|rule| Rule {
            id: rule.id.clone(),
            title: rule.title.clone().expect("a rule has a title"),
            text: rule.text.clone().expect("a rule has a text"),
            operator,
            not_proven_by_cases: rule.not_proven_by_cases.clone(),
        });
        rows.chain(entries).collect()
    }
}

fn axes(row: &RowFile) -> String {
    let axis = |axis: &serde_yaml::Value| match axis {
        serde_yaml::Value::Number(length) => length.to_string(),
        name => name.as_str().unwrap_or_default().to_owned(),
    };
    let axes: Vec<_> = row.axes.iter().flatten().map(axis).collect();
    format!("`cache` has the axes ({}, Dh).", axes.join(", "))
}
