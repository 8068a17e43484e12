//! The rules that cases prove: the entries of the schemas, each with its place on the operator's page.

use std::collections::HashMap;
use std::sync::LazyLock;

use kvcache_schema::{SCHEMA, multi_head_attention, multi_head_cache_attention, static_key_value_cache};
use serde::Deserialize;

/// An operator with a page of its own, `docs/NAME.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperatorPage {
    /// `dynamic_batching.KeyValueCache`.
    KeyValueCache,
    /// `dynamic_batching.MultiHeadAttention`.
    MultiHeadAttention,
    /// `dynamic_batching.MultiHeadCacheAttention`.
    MultiHeadCacheAttention,
    /// `KeyValueCache` of static batching.
    StaticKeyValueCache,
}

/// A rule of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What cases call it: words like `quantizing.epsilon`, unique among the rules of its operator.
    pub id: String,
    /// What a reader calls it.
    pub title: String,
    /// What it says.
    pub text: String,
    /// The page that states it.
    pub page: OperatorPage,
    /// Why no case can fail where this rule alone is broken, if that is so.
    pub not_proven_by_cases: Option<String>,
}

impl OperatorPage {
    /// All pages, a page behind those that it refers to.
    pub const ALL: [Self; 4] =
        [Self::KeyValueCache, Self::MultiHeadAttention, Self::MultiHeadCacheAttention, Self::StaticKeyValueCache];

    /// The name of the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KeyValueCache => "KeyValueCache",
            Self::MultiHeadAttention => "MultiHeadAttention",
            Self::MultiHeadCacheAttention => "MultiHeadCacheAttention",
            Self::StaticKeyValueCache => "StaticKeyValueCache",
        }
    }

    /// The operator's name in a graph.
    pub const fn op_type(self) -> &'static str {
        match self {
            Self::StaticKeyValueCache => Self::KeyValueCache.name(),
            other => other.name(),
        }
    }

    const fn schema(self) -> &'static str {
        match self {
            Self::KeyValueCache => SCHEMA,
            Self::MultiHeadAttention => multi_head_attention::SCHEMA,
            Self::MultiHeadCacheAttention => multi_head_cache_attention::SCHEMA,
            Self::StaticKeyValueCache => static_key_value_cache::SCHEMA,
        }
    }
}

impl Rule {
    /// Where the rule is stated, below the folder of the pages: `KeyValueCache.md#rule-quantizing.epsilon`.
    pub fn link(&self) -> String {
        format!("{}.md#rule-{}", self.page.name(), self.id)
    }
}

/// The rules of an operator, in the order of its page but for those of modes and layouts, which come first.
pub fn rules(page: OperatorPage) -> &'static [Rule] {
    &RULES[&page]
}

/// The rule of an operator that cases call `id`.
pub fn rule(page: OperatorPage, id: &str) -> Option<&'static Rule> {
    rules(page).iter().find(|rule| rule.id == id)
}

static RULES: LazyLock<HashMap<OperatorPage, Vec<Rule>>> = LazyLock::new(|| {
    let mut schemas = HashMap::new();
    for page in OperatorPage::ALL {
        let mut schema: SchemaFile = serde_yaml::from_str(page.schema()).expect("a schema has rules");
        schema.take_over(&schemas);
        schemas.insert(page.name().to_owned(), schema);
    }
    OperatorPage::ALL.into_iter().map(|page| (page, schemas[page.name()].rules(page))).collect()
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

    fn rules(&self, page: OperatorPage) -> Vec<Rule> {
        let tables = [("cache-mode", &self.cache_modes), ("cache-layout", &self.cache_layouts)];
        let rows = tables.into_iter().flat_map(|(table, file)| {
            let TableFile::Rows(rows) = file else { unreachable!("every as_in is replaced") };
            rows.iter().map(move |row| Rule {
                id: format!("{table}.{}", row.code),
                title: format!("{} {}, {}", table.replace('-', "_"), row.code, row.name),
                text: row.meaning.clone().unwrap_or_else(|| axes(row)),
                page,
                not_proven_by_cases: None,
            })
        });
        let entries = self.rules.iter().map(|rule| Rule {
            id: rule.id.clone(),
            title: rule.title.clone().expect("a rule has a title"),
            text: rule.text.clone().expect("a rule has a text"),
            page,
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
