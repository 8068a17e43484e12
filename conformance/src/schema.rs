//! The operators' schemas, in which every `as_in` is replaced by what it stands for.

use kvcache_schema::{quantized_gather, quantized_matmul};
use serde_yaml::{Mapping, Value};

use crate::case::Operator;

/// The schemas of all operators: those that have cases, then the products with quantized matrices. A row of a list that
/// another operator's schema has is here as it is there, with that operator's name as its `as_in`.
///
/// # Panics
/// If a schema is no YAML, or refers to what is not there.
pub fn all_schemas() -> Vec<Value> {
    let mut schemas: Vec<Value> = Vec::new();
    let others = [("QuantizedMatMul", quantized_matmul::SCHEMA), ("QuantizedGather", quantized_gather::SCHEMA)];
    for (name, text) in Operator::ALL.map(|operator| (operator.name(), operator.schema())).into_iter().chain(others) {
        let mut schema: Value = serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        resolve(&mut schema, &[], &schemas);
        keep_legal_combinations(&mut schema);
        schemas.push(schema);
    }
    schemas
}

/// The schema of each operator that has cases, as [`all_schemas`] has it.
pub fn schemas() -> Vec<(Operator, Value)> {
    Operator::ALL.into_iter().zip(all_schemas()).collect()
}

/// Replaces every `as_in` below `value`, which is at `path` in its schema.
fn resolve(value: &mut Value, path: &[Step<'_>], earlier: &[Value]) {
    if let Some(name) = value.get("as_in").cloned() {
        let schema = earlier.iter().find(|schema| schema["name"] == name);
        let schema = schema.unwrap_or_else(|| panic!("as_in {name:?} refers to no earlier schema"));
        let origin = path.iter().try_fold(schema, |at, step| step.take(at));
        let origin = origin.unwrap_or_else(|| panic!("{name:?} has no entry for {value:?}"));
        *value = merged(value, origin, &name);
        if let (Some(Step::Key(_)), Value::Mapping(mapping)) = (path.last(), value) {
            mapping.remove("as_in");
        }
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

/// What `origin` says, which the schema of `name` has, but for what stands beside the `as_in`; of a list all but what
/// is `without`.
fn merged(value: &Value, origin: &Value, name: &Value) -> Value {
    match (value, origin) {
        (Value::Mapping(own), Value::Mapping(inherited)) => {
            let from = inherited.get("as_in").unwrap_or(name).clone();
            let mut merged: Mapping = inherited.clone();
            merged.extend(own.clone());
            merged.insert("as_in".into(), from);
            Value::Mapping(merged)
        }
        (_, Value::Sequence(all)) => {
            let is_without =
                |item: &Value| value["without"].as_sequence().is_some_and(|without| without.contains(item));
            let nothing = Value::Mapping(Mapping::new());
            let item = |item: &Value| if item.is_mapping() { merged(&nothing, item, name) } else { item.clone() };
            all.iter().filter(|item| !is_without(item)).map(item).collect()
        }
        _ => origin.clone(),
    }
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
