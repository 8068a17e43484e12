//! Generates the reference page of each operator, like `docs/KeyValueCache.md` from `key_value_cache.yaml`.
//!
//! `cargo run -p kvcache-schema --example operator_page` writes the pages; with `--check` it compares instead and fails
//! if one is out of date.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use kvcache_testing::schemas::schemas;
use serde_yaml::{Mapping, Value};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let check = std::env::args().any(|argument| argument == "--check");
    let mut outdated = false;
    for (file, schema) in schemas() {
        let (name, page) = (format!("{}.md", title(&schema)), page(file, &schema)?);
        let path = docs.join(&name);
        if !check {
            std::fs::create_dir_all(&docs)?;
            std::fs::write(path, page)?;
        } else if std::fs::read_to_string(path).ok().as_deref() == Some(page.as_str()) {
            println!("docs/{name} is up to date with schema/{file}");
        } else {
            eprintln!(
                "docs/{name} is out of date with schema/{file}: run \
                 `cargo run -p kvcache-schema --example operator_page`"
            );
            outdated = true;
        }
    }
    Ok(if outdated { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The whole page of the schema in `file`, as Markdown.
fn page(file: &str, schema: &Value) -> Result<String, std::fmt::Error> {
    let mut md = String::new();
    writeln!(md, "<!-- Generated from schema/{file}; edit that file, then run")?;
    writeln!(md, "     `cargo run -p kvcache-schema --example operator_page`. -->")?;
    writeln!(md, "# {}\n\n{}\n", title(schema), text(&schema["summary"]))?;
    writeln!(md, "Domains {}; version {}.\n", list(&schema["domains"]), text(&schema["version"]))?;

    writeln!(md, "Dimensions:\n")?;
    for (name, meaning) in mapping(&schema["dimensions"]) {
        writeln!(md, "- **{}**: {}", text(name), text(meaning))?;
    }

    writeln!(md, "\n## Attributes\n\nAll are integers; an absent one takes its default.\n")?;
    table(&mut md, &["name", "default", "range", "meaning"], rows(&schema["attributes"]), |row| {
        let default = if row["required"] == Value::Bool(true) { "required".to_owned() } else { text(&row["default"]) };
        vec![code(&row["name"]), default, range(row, schema), text(&row["meaning"])]
    })?;
    rules(&mut md, schema, Some("attributes"))?;

    cache(&mut md, schema)?;

    for (title, key) in [("Inputs", "inputs"), ("Outputs", "outputs")] {
        writeln!(md, "\n## {title}\n")?;
        table(&mut md, &["name", "type", "shape", "meaning"], rows(&schema[key]), |row| {
            let mut meaning = text(&row["meaning"]);
            for (flag, words) in [("optional", "*Optional.*"), ("in_out", "*Modified in place.*")] {
                if row[flag] == Value::Bool(true) {
                    meaning = format!("{words} {meaning}");
                }
            }
            let mut shapes = shape(&row["shape"]);
            if !row["or_shape"].is_null() {
                shapes += &format!(" or {}", shape(&row["or_shape"]));
            }
            vec![code(&row["name"]), text(&row["type"]), shapes, meaning]
        })?;
        rules(&mut md, schema, Some(key))?;
    }

    writeln!(md, "\n## Types\n")?;
    for (name, types) in mapping(&schema["types"]) {
        writeln!(md, "- **{}**: {}", text(name), list(types))?;
    }
    if !rows(&schema["combinations"]).is_empty() {
        writeln!(
            md,
            "\nLegal combinations; without quantization a scale of any T3 may be given and is left untouched.\n"
        )?;
        let combinations = [rows(&schema["combinations"]), rows(&schema["extensions"])].concat();
        table(&mut md, &["quant_bit", "T1", "T2", "T3"], &combinations, |row| {
            let t3 = if row["T3"].is_null() { "none".to_owned() } else { text(&row["T3"]) };
            vec![text(&row["quant_bit"]), text(&row["T1"]), text(&row["T2"]), t3]
        })?;
    }
    rules(&mut md, schema, Some("types"))?;

    writeln!(md, "\n## Rules")?;
    rules(&mut md, schema, None)?;
    Ok(md)
}

/// The rules of a section, each with its anchor.
fn rules(md: &mut String, schema: &Value, section: Option<&str>) -> std::fmt::Result {
    let of_section: Vec<_> = rows(&schema["rules"]).iter().filter(|rule| rule["section"].as_str() == section).collect();
    if !of_section.is_empty() {
        writeln!(md)?;
    }
    for rule in of_section {
        let (title, id, words) = (text(&rule["title"]), text(&rule["id"]), text(&rule["text"]));
        write!(md, "- {}**{title}** (`{id}`). {words}", anchor(&id))?;
        if let Some(reason) = rule["not_proven_by_cases"].as_str() {
            write!(md, " *Not proven by golden cases: {reason}*")?;
        }
        writeln!(md)?;
    }
    Ok(())
}

/// The place of a rule on the page, `#rule-ID`.
fn anchor(id: &str) -> String {
    format!("<a id=\"rule-{id}\"></a>")
}

/// The code of a row that is a rule, with the rule's anchor.
fn code_of_rule(table: &str, row: &Value) -> String {
    let code = text(&row["code"]);
    format!("{}{code}", anchor(&format!("{table}.{code}")))
}

/// The name of an operator's page: its own, unless the schema gives another.
fn title(schema: &Value) -> String {
    text(if schema["page"].is_null() { &schema["name"] } else { &schema["page"] })
}

/// How an operator with a cache addresses it: the sections on modes and layouts, where it has any.
fn cache(md: &mut String, schema: &Value) -> std::fmt::Result {
    let (modes, layouts) = (rows(&schema["cache_modes"]), rows(&schema["cache_layouts"]));
    if !modes.is_empty() {
        writeln!(md, "\n## Cache modes\n")?;
        table(md, &["cache_mode", "name", "shape of cachestarts", "meaning"], modes, |row| {
            let code = code_of_rule("cache-mode", row);
            vec![code, text(&row["name"]), shape(&row["cachestarts"]), text(&row["meaning"])]
        })?;
        rules(md, schema, Some("cache_modes"))?;
    }
    if !layouts.is_empty() {
        writeln!(md, "\n## Cache layouts\n")?;
        table(md, &["cache_layout", "name", "cache", "scale"], layouts, |row| {
            let with_inner = |inner: &str| shape(&rows(&row["axes"]).iter().cloned().chain([inner.into()]).collect());
            let code = code_of_rule("cache-layout", row);
            vec![code, text(&row["name"]), with_inner("Dh"), with_inner("Dh/quant_group")]
        })?;
    }
    Ok(())
}

fn rows(value: &Value) -> &[Value] {
    value.as_sequence().map_or(&[], Vec::as_slice)
}

fn mapping(value: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    value.as_mapping().into_iter().flat_map(Mapping::iter)
}

/// A scalar as it stands in the YAML.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_yaml::to_string(other).unwrap_or_default().trim_end().to_owned(),
    }
}

fn code(value: &Value) -> String {
    format!("`{}`", text(value))
}

fn list(value: &Value) -> String {
    rows(value).iter().map(code).collect::<Vec<_>>().join(", ")
}

fn shape(value: &Value) -> String {
    match value {
        Value::Sequence(axes) => format!("`({})`", axes.iter().map(text).collect::<Vec<_>>().join(", ")),
        words => text(words),
    }
}

fn range(attribute: &Value, schema: &Value) -> String {
    let given = |key: &str| (!attribute[key].is_null()).then(|| text(&attribute[key]));
    let last_code = || Some(text(&rows(&schema[attribute["codes_of"].as_str()?]).last()?["code"]));
    let mut words = match (given("one_of"), given("max").or_else(last_code), given("below")) {
        (Some(_), _, _) => format!("one of {}", list(&attribute["one_of"])),
        (None, Some(max), _) => format!("{} to {max}", text(&attribute["min"])),
        (None, None, Some(below)) => format!("{} to `{below}` - 1", text(&attribute["min"])),
        (None, None, None) => format!("at least {}", text(&attribute["min"])),
    };
    if let Some(multiple) = given("divides") {
        words += &format!(", a divisor of `{multiple}` where it is not 0");
    }
    if let Some(quant_bit) = given("with_quant_bit") {
        words += &format!(", other than 0 only where `quant_bit` is {quant_bit}");
    }
    if let Some(quant_bit) = given("even_with_quant_bit") {
        words += &format!(", even where `quant_bit` is {quant_bit}");
    }
    words
}

fn table(
    md: &mut String,
    head: &[&str],
    rows: &[Value],
    cells: impl Fn(&Value) -> Vec<String>,
) -> Result<(), std::fmt::Error> {
    writeln!(md, "| {} |", head.join(" | "))?;
    writeln!(md, "|{}", " --- |".repeat(head.len()))?;
    for row in rows {
        writeln!(md, "| {} |", cells(row).join(" | "))?;
    }
    Ok(())
}
