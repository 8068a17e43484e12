//! A report as JSON.

use serde_json::{Value, json};

use super::entry::{Entry, Report, Verdict};

/// The version of the form of the JSON. It rises when a field goes away or changes its meaning; new ones may come.
pub const JSON_VERSION: u32 = 2;

impl Report {
    /// The report as one JSON document:
    ///
    /// - `version`: [`JSON_VERSION`]; `implementation` and `conforms`, as in [`Report`];
    /// - `summary`: `passed`, `failed`, `unsupported`, `not_run`, the numbers of cases;
    /// - `rules`: for each rule its `operator`, `rule` (the id), `title`, `link` (page and anchor), and the same numbers;
    /// - `cases`: for each case its `suite`, `operator`, `case` (the name), `about`, `rules` (ids), `verdict` (`passed`,
    ///   `failed`, `unsupported` or `not-run`), `seconds`; where it applies, `reason` (why it is unsupported or was not
    ///   run) and `difference`: its `text`, and the fields of [`Difference`](crate::Difference);
    /// - `flaws`: what is wrong, in words (`flaw`), in how many `cases`, and `only_where`: what these alone have in
    ///   common.
    ///
    /// Elements are objects with `type`, `value` and `bits`, the last two as text, since JSON has no NaN.
    pub fn json(&self) -> String {
        let rules = self.by_rule().into_iter().map(|row| {
            let rule = row.rule;
            let operator = rule.operator.name();
            with(&row.cases, json!({"operator": operator, "rule": rule.id, "title": rule.title, "link": rule.link()}))
        });
        let document = json!({
            "version": JSON_VERSION,
            "implementation": self.implementation,
            "conforms": self.conforms(),
            "summary": self.counts(),
            "rules": rules.collect::<Vec<_>>(),
            "cases": self.entries.iter().map(Entry::json).collect::<Vec<_>>(),
            "flaws": self.flaws(),
        });
        format!("{document:#}")
    }
}

impl Entry {
    fn json(&self) -> Value {
        let (verdict, reason) = self.verdict.word();
        let mut row = json!({
            "suite": self.operator.suite().name(),
            "operator": self.operator.name(),
            "case": self.case,
            "about": self.about,
            "rules": self.rules,
            "verdict": verdict,
            "seconds": self.time.as_secs_f64(),
        });
        if let Some(reason) = reason {
            row["reason"] = json!(reason);
        }
        if let Verdict::Failed(difference) = &self.verdict {
            row["difference"] = with(difference, json!({"text": difference.to_string()}));
        }
        row
    }
}

/// An object with the fields of another value, too.
fn with(fields: &impl serde::Serialize, mut object: Value) -> Value {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), json!(fields)) {
        object.extend(fields);
    }
    object
}
