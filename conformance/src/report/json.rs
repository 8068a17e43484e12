//! A report as JSON.

use serde::Serialize;

use super::by_rule::RuleCount;
use super::entry::{Entry, Report, Verdict};
use crate::difference::Difference;
use crate::suite::Diagnosis;

/// The version of the form of the JSON. It rises when a field goes away or changes its meaning; new ones may come.
pub const JSON_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    implementation: &'a str,
    profile: Option<&'a str>,
    conforms: bool,
    summary: Summary,
    rules: Vec<RuleRow<'a>>,
    cases: Vec<CaseRow<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    diagnosis: &'a [String],
}

#[derive(Serialize)]
struct Summary {
    passed: usize,
    failed: usize,
    unsupported: usize,
    not_run: usize,
}

#[derive(Serialize)]
struct RuleRow<'a> {
    operator: &'static str,
    rule: &'a str,
    title: &'a str,
    link: String,
    #[serde(flatten)]
    summary: Summary,
}

#[derive(Serialize)]
struct CaseRow<'a> {
    suite: &'static str,
    operator: &'static str,
    case: &'a str,
    about: &'a str,
    rules: &'a [String],
    verdict: &'static str,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Located<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diagnosis: Option<&'a Diagnosis>,
}

#[derive(Serialize)]
struct Located<'a> {
    text: String,
    #[serde(flatten)]
    difference: &'a Difference,
}

impl Report {
    /// The report as one JSON document:
    ///
    /// - `version`: [`JSON_VERSION`]; `implementation`, `profile` (or null), and `conforms`, as in [`Report`];
    /// - `summary`: `passed`, `failed`, `unsupported`, `not_run`, the numbers of cases;
    /// - `rules`: for each rule its `operator`, `rule` (the id), `title`, `link` (page and anchor), and the same numbers;
    /// - `cases`: for each case its `suite`, `operator`, `case` (the name), `about`, `rules` (ids), `verdict` (`passed`,
    ///   `failed`, `unsupported` or `not-run`), `seconds`; where it applies, `outside` (what is outside of the profile),
    ///   `reason` (why it is unsupported or was not run), `diagnosis` (`mistake`, `about`, `rule`), and `difference`:
    ///   its `text`, and the fields of [`Difference`];
    /// - `diagnosis`: the known mistakes that explain most of the failures, in words, if there are any.
    ///
    /// Elements are objects with `type`, `value` and `bits`, the last two as text, since JSON has no NaN.
    pub fn json(&self) -> String {
        let document = Document {
            version: JSON_VERSION,
            implementation: &self.implementation,
            profile: self.profile.as_deref(),
            conforms: self.conforms(),
            summary: Summary {
                passed: self.passed(),
                failed: self.failed(),
                unsupported: self.unsupported(),
                not_run: self.not_run(),
            },
            rules: self.rule_rows(),
            cases: self.entries.iter().map(CaseRow::from).collect(),
            diagnosis: &self.conclusions,
        };
        serde_json::to_string_pretty(&document).expect("names are text and numbers are finite")
    }

    fn rule_rows(&self) -> Vec<RuleRow<'static>> {
        let row = |counts: RuleCount| RuleRow {
            operator: counts.rule.page.name(),
            rule: &counts.rule.id,
            title: &counts.rule.title,
            link: counts.rule.link(),
            summary: Summary {
                passed: counts.passed,
                failed: counts.failed,
                unsupported: counts.unsupported,
                not_run: counts.not_run,
            },
        };
        self.by_rule().into_iter().map(row).collect()
    }
}

impl<'a> From<&'a Entry> for CaseRow<'a> {
    fn from(entry: &'a Entry) -> Self {
        let (mut reason, mut difference, mut diagnosis) = (None, None, None);
        let verdict = match &entry.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed(first, known) => {
                difference = Some(Located { text: first.to_string(), difference: first });
                diagnosis = known.as_ref();
                "failed"
            }
            Verdict::Unsupported(why) => {
                reason = Some(why.as_str());
                "unsupported"
            }
            Verdict::NotRun(why) => {
                reason = Some(why.as_str());
                "not-run"
            }
        };
        Self {
            suite: entry.suite,
            operator: entry.page.name(),
            case: &entry.case,
            about: &entry.about,
            rules: &entry.rules,
            verdict,
            seconds: entry.time.as_secs_f64(),
            outside: entry.outside.as_deref(),
            reason,
            difference,
            diagnosis,
        }
    }
}
