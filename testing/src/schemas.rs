//! The schemas of all operators, with every `as_in` replaced by what it stands for.

use kvcache_schema::{SCHEMA, multi_head_attention, multi_head_cache_attention, static_key_value_cache};
use serde_yaml::{Mapping, Value};

/// The file of each schema in this crate's folder, and its text. A schema refers to earlier ones.
pub const SCHEMAS: [(&str, &str); 4] = [
    ("key_value_cache.yaml", SCHEMA),
    ("multi_head_attention.yaml", multi_head_attention::SCHEMA),
    ("multi_head_cache_attention.yaml", multi_head_cache_attention::SCHEMA),
    ("static_key_value_cache.yaml", static_key_value_cache::SCHEMA),
];

/// The file and the content of each schema.
///
/// # Panics
/// If a schema is no YAML, or refers to what is not there.
pub fn schemas() -> Vec<(&'static str, Value)> {
    let mut schemas: Vec<(&str, Value)> = Vec::new();
    for (file, text) in SCHEMAS {
        let mut schema: Value = serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        resolve(&mut schema, &[], &schemas);
        keep_legal_combinations(&mut schema);
        schemas.push((file, schema));
    }
    schemas
}

/// Replaces every `as_in` below `value`, which is at `path` in its schema.
fn resolve(value: &mut Value, path: &[Step<'_>], earlier: &[(&str, Value)]) {
    if let Some(name) = value.get("as_in").cloned() {
        let schema = earlier.iter().map(|(_, schema)| schema).find(|schema| schema["name"] == name);
        let schema = schema.unwrap_or_else(|| panic!("as_in {name:?} refers to no earlier schema"));
        let origin = path.iter().try_fold(schema, |at, step| step.take(at));
        *value = merged(value, origin.unwrap_or_else(|| panic!("{name:?} has no entry for {value:?}")));
        return;
    }
    match value {
        Value::Mapping(mapping) => {
            for (key, value) in mapping.iter_mut() {
                resolve(value, &[path, &[Step::Key(key)]].concat(), earlier);
            }
        }
        Value::Sequence(rows) => {
            for row in rows {
                let name = ["name", "id"].into_iter().find_map(|key| Some((key, row.get(key)?.clone())));
                if let Some((key, name)) = name {
                    resolve(row, &[path, &[Step::Row(key, &name)]].concat(), earlier);
                }
            }
        }
        _ => {}
    }
}

/// A step from a part of a schema to a smaller one.
#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a Value),
    Row(&'static str, &'a Value),
}

impl Step<'_> {
    fn take<'v>(&self, at: &'v Value) -> Option<&'v Value> {
        match *self {
            Step::Key(key) => at.get(key),
            Step::Row(key, name) => at.as_sequence()?.iter().find(|row| row.get(key) == Some(name)),
        }
    }
}

/// What `origin` says, but for what stands beside the `as_in`; of a list all but what is `without`.
fn merged(value: &Value, origin: &Value) -> Value {
    if let (Value::Sequence(all), Value::Sequence(without)) = (origin, &value["without"]) {
        return all.iter().filter(|item| !without.contains(item)).cloned().collect();
    }
    let (Value::Mapping(own), Value::Mapping(inherited)) = (value, origin) else { return origin.clone() };
    let mut merged: Mapping = inherited.clone();
    merged.extend(own.iter().filter(|(key, _)| key.as_str() != Some("as_in")).map(|(k, v)| (k.clone(), v.clone())));
    Value::Mapping(merged)
}

/// Leaves those rows of the table of types whose T1 is one of the operator's.
fn keep_legal_combinations(schema: &mut Value) {
    let t1 = schema["types"]["T1"].clone();
    let legal = |row: &Value| t1.as_sequence().is_some_and(|types| types.contains(&row["T1"]));
    for table in ["combinations", "extensions"] {
        if let Some(rows) = schema.get_mut(table).and_then(Value::as_sequence_mut) {
            rows.retain(legal);
        }
    }
}
