//! The text of a module: its shared variables and its functions, whose statements are not read yet.

use std::collections::BTreeMap;

use thiserror::Error;

/// What is wrong with a module's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct PtxError {
    pub line: u32,
    pub message: String,
}

pub(crate) fn error<T>(line: u32, message: impl Into<String>) -> Result<T, PtxError> {
    Err(PtxError { line, message: message.into() })
}

/// A variable with a place in memory.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    pub(crate) align: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Statement {
    Open,
    Close,
    Label(String),
    /// Without the semicolon.
    Text(String),
}

#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) is_entry: bool,
    pub(crate) parameters: Vec<Variable>,
    pub(crate) body: Vec<(u32, Statement)>,
}

#[derive(Debug, Default)]
pub(crate) struct Text {
    pub(crate) shared: Vec<Variable>,
    pub(crate) functions: BTreeMap<String, Function>,
}

/// Cuts a module's text into functions and statements.
pub(crate) fn read(ptx: &str) -> Result<Text, PtxError> {
    let mut text = Text::default();
    let mut function: Option<(String, Function)> = None;
    let mut depth = 0;
    for (line, statement) in statements(ptx)? {
        let Some((_, of)) = &mut function else {
            let Statement::Text(head) = statement else {
                return error(line, "a statement outside of functions");
            };
            if head.split_whitespace().any(|word| word == ".entry" || word == ".func") {
                function = Some(function_of(line, &head)?);
            } else if head.starts_with(".shared") {
                text.shared.push(variable(line, &head)?);
            } else if !head.starts_with(".global") && !head.starts_with(".const") {
                return error(line, format!("unknown: {head}"));
            }
            continue;
        };
        match statement {
            Statement::Open => depth += 1,
            Statement::Close => depth -= 1,
            Statement::Label(_) | Statement::Text(_) => (),
        }
        of.body.push((line, statement));
        if depth == 0 {
            text.functions.extend(function.take());
        }
    }
    match function {
        Some((name, _)) => error(ptx.lines().count() as u32, format!("{name} does not end")),
        None => Ok(text),
    }
}

fn statements(ptx: &str) -> Result<Vec<(u32, Statement)>, PtxError> {
    let mut statements = Vec::new();
    // What has been read of a statement, and the line on which it begins.
    let (mut part, mut begun) = (String::new(), 0);
    for (line, text) in (1..).zip(ptx.lines()) {
        let text = text.split("//").next().unwrap_or_default().trim();
        if [".version", ".target", ".address_size", ".file", ".loc"].iter().any(|word| text.starts_with(word)) {
            continue;
        }
        for character in text.chars().chain([' ']) {
            if part.trim().is_empty() {
                begun = line;
                part.clear();
            }
            // Other braces enclose vectors.
            let is_scope = part.is_empty() || part.contains(".entry") || part.contains(".func");
            let next = match character {
                ';' => None,
                '{' if is_scope => Some(Statement::Open),
                '}' if is_scope => Some(Statement::Close),
                ':' if !part.contains([' ', '.']) => Some(Statement::Label(std::mem::take(&mut part))),
                _ => {
                    part.push(character);
                    continue;
                }
            };
            if !part.is_empty() {
                statements.push((begun, Statement::Text(std::mem::take(&mut part).trim().to_owned())));
            }
            statements.extend(next.map(|next| (line, next)));
        }
    }
    match part.trim().is_empty() {
        true => Ok(statements),
        false => error(begun, format!("does not end: {part}")),
    }
}

/// `.visible .entry name(.param ...) .maxntid ...`, or `.func name(.param ...)`.
fn function_of(line: u32, head: &str) -> Result<(String, Function), PtxError> {
    let is_entry = head.contains(".entry");
    let (_, rest) = head.split_once(if is_entry { ".entry" } else { ".func" }).unwrap_or_default();
    let parts = rest.split_once('(').and_then(|(name, rest)| Some((name.trim(), rest.split_once(')')?.0)));
    let Some((name, parameters)) = parts.filter(|(name, _)| !name.is_empty()) else {
        return error(line, format!("no function: {head}"));
    };
    let parameters = parameters.split(',').filter(|part| !part.trim().is_empty());
    let parameters = parameters.map(|parameter| variable(line, parameter)).collect::<Result<_, _>>()?;
    Ok((name.to_owned(), Function { is_entry, parameters, body: Vec::new() }))
}

/// `.shared .align 8 .b8 name[80]`, `.param .u32 name`.
fn variable(line: u32, text: &str) -> Result<Variable, PtxError> {
    let mut words = text.split_whitespace().peekable();
    let (mut size, mut align, mut name) = (0, None, "");
    while let Some(word) = words.next() {
        match word.strip_prefix('.') {
            Some("align") => align = words.next().and_then(|align| align.parse().ok()),
            Some(word) => {
                size =
                    word.trim_start_matches(char::is_alphabetic).parse::<usize>().map_or(size, |bits| bits.div_ceil(8));
            }
            None => name = word,
        }
    }
    let (name, count) = match name.split_once('[') {
        Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap_or(0)),
        None => (name, 1),
    };
    match name.is_empty() || size == 0 {
        true => error(line, format!("no variable: {text}")),
        false => Ok(Variable { name: name.to_owned(), bytes: size * count, align: align.unwrap_or(size) }),
    }
}
