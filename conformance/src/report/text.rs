//! A report as text for a terminal.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::by_rule::RuleCount;
use super::entry::{Entry, Report, Verdict};

/// A paragraph for each failure, the reasons why cases are unsupported, what explains the failures, and a closing
/// count. What a program or an exception has said is shown so that it does nothing to a terminal: control characters
/// are escaped.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Escaped(f);
        for entry in &self.entries {
            entry.failure(f)?;
        }
        reasons(f, "unsupported", &self.entries, |verdict| match verdict {
            Verdict::Unsupported(reason) => Some(reason),
            _ => None,
        })?;
        reasons(f, "not run", &self.entries, |verdict| match verdict {
            Verdict::NotRun(reason) => Some(reason),
            _ => None,
        })?;
        for conclusion in &self.conclusions {
            writeln!(f, "diagnosis: {conclusion}")?;
        }
        f.write_str(&self.summary())
    }
}

/// Writes text with control characters escaped, but for the ends of lines and tabs.
struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '\n' | '\t' => self.0.write_char(c),
            // The others of these change the order in which a terminal shows what comes behind them.
            c if c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                write!(self.0, "{}", c.escape_default())
            }
            c => self.0.write_char(c),
        })
    }
}

impl Entry {
    fn failure(&self, f: &mut impl Write) -> fmt::Result {
        let Verdict::Failed(difference, diagnosis) = &self.verdict else { return Ok(()) };
        writeln!(f, "FAILED {}/{}: {difference}", self.suite, self.case)?;
        writeln!(f, "    case: {}", self.about)?;
        if !self.rules.is_empty() {
            writeln!(f, "    rules of {}: {}", self.page.name(), self.rules.join(", "))?;
        }
        if let Some(outside) = &self.outside {
            writeln!(f, "    must be refused, since {outside}")?;
        }
        if let Some(diagnosis) = diagnosis {
            writeln!(f, "    diagnosis: {}: {} (rule {})", diagnosis.mistake, diagnosis.about, diagnosis.rule)?;
        }
        Ok(())
    }
}

/// A line for each reason, with the number of its cases.
fn reasons<'a>(
    f: &mut impl Write,
    what: &str,
    entries: &'a [Entry],
    reason: impl Fn(&'a Verdict) -> Option<&'a String>,
) -> fmt::Result {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in entries.iter().filter_map(|entry| reason(&entry.verdict)) {
        *counts.entry(reason).or_default() += 1;
    }
    counts.into_iter().try_for_each(|(reason, count)| {
        let cases = if count == 1 { "case" } else { "cases" };
        writeln!(f, "{what}: {reason} ({count} {cases})")
    })
}

impl Report {
    /// For a terminal: the table by rule, then what is displayed.
    pub fn text(&self) -> String {
        format!("{}\n{self}\n", self.rule_table())
    }

    /// One line: what was tested, by which profile, and the counts.
    pub fn summary(&self) -> String {
        let mut summary = String::new();
        if !self.implementation.is_empty() {
            summary = format!("{}: ", self.implementation);
        }
        summary += &format!("{} passed, {} failed", self.passed(), self.failed());
        for (count, what) in [(self.unsupported(), "unsupported"), (self.not_run(), "not run")] {
            if count > 0 {
                summary += &format!(", {count} {what}");
            }
        }
        if let Some(profile) = &self.profile {
            summary += &format!(" (profile: {profile})");
        }
        summary
    }

    /// The table by rule as text: a line for each rule that a case proves, and the rules that none proves.
    pub fn rule_table(&self) -> String {
        let (proven, unproven): (Vec<_>, Vec<_>) = self.by_rule().into_iter().partition(|counts| counts.cases() > 0);
        let mut table = String::new();
        let width = proven.iter().map(|counts| counts.rule.title.chars().count()).max().unwrap_or_default();
        let mut page = None;
        for counts in &proven {
            if page.replace(counts.rule.page) != Some(counts.rule.page) {
                let heading = counts.rule.page.name();
                table += &format!("{heading:width$}  passed  failed  unsupported  not run\n", width = width + 2);
            }
            table += &line(counts, width);
        }
        if !unproven.is_empty() {
            table += "rules that no case here proves: ";
            let names = unproven.iter().map(|counts| format!("{}/{}", counts.rule.page.name(), counts.rule.id));
            table += &names.collect::<Vec<_>>().join(", ");
            table.push('\n');
        }
        table
    }
}

fn line(counts: &RuleCount, width: usize) -> String {
    let RuleCount { rule, passed, failed, unsupported, not_run } = counts;
    let mark = match (failed, passed) {
        (1.., _) => 'X',
        (0, 1..) => ' ',
        (0, 0) => '-',
    };
    let (title, link) = (&rule.title, rule.link());
    format!("{mark} {title:width$}  {passed:6}  {failed:6}  {unsupported:11}  {not_run:7}  {link}\n")
}
