//! A report as text for a terminal.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::entry::{Counts, Entry, Report, RuleCount, Verdict};
use crate::rules::rule;

/// A paragraph for each failure, the reasons why cases are unsupported, the flaws with what their cases have in common,
/// and a closing count. What a program or an exception has said is shown so that it does nothing to a terminal: control
/// characters are escaped.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Escaped(f);
        for entry in &self.entries {
            entry.failure(f)?;
        }
        for what in ["unsupported", "not-run"] {
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            for (_, reason) in self.entries.iter().map(|entry| entry.verdict.word()).filter(|word| word.0 == what) {
                *reasons.entry(reason.unwrap_or_default()).or_default() += 1;
            }
            for (reason, count) in reasons {
                let cases = if count == 1 { "case" } else { "cases" };
                writeln!(f, "{}: {reason} ({count} {cases})", what.replace('-', " "))?;
            }
        }
        for flaw in self.flaws() {
            let cases = if flaw.cases == 1 { "case" } else { "cases" };
            write!(f, "{} {cases}: {}", flaw.cases, flaw.flaw)?;
            if !flaw.only_where.is_empty() {
                write!(f, "; only where {}", flaw.only_where.join(" and "))?;
            }
            f.write_char('\n')?;
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
            // The others of these change the order in which a terminal shows what comes after them.
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
        let Verdict::Failed(difference) = &self.verdict else { return Ok(()) };
        writeln!(f, "FAILED {}/{}: {difference}", self.operator.suite().name(), self.case)?;
        writeln!(f, "    case: {}", self.about)?;
        for rule in self.rules.iter().filter_map(|id| rule(self.operator, id)) {
            writeln!(f, "    rule {}: {}", rule.link(), rule.text.trim_end())?;
        }
        Ok(())
    }
}

impl Report {
    /// For a terminal: the table by rule, then what is displayed.
    pub fn text(&self) -> String {
        format!("{}\n{self}\n", self.rule_table())
    }

    /// One line: what was tested, and the counts.
    pub fn summary(&self) -> String {
        let mut summary = String::new();
        if !self.implementation.is_empty() {
            summary = format!("{}: ", self.implementation);
        }
        let Counts { passed, failed, unsupported, not_run } = self.counts();
        summary += &format!("{passed} passed, {failed} failed");
        for (count, what) in [(unsupported, "unsupported"), (not_run, "not run")] {
            if count > 0 {
                summary += &format!(", {count} {what}");
            }
        }
        summary
    }

    /// The table by rule as text: a line for each rule that a case proves, and the rules that none proves.
    pub fn rule_table(&self) -> String {
        let (proven, unproven): (Vec<_>, Vec<_>) =
            self.by_rule().into_iter().partition(|counts| counts.cases != Counts::default());
        let mut table = String::new();
        let width = proven.iter().map(|counts| counts.rule.title.chars().count()).max().unwrap_or_default();
        let mut operator = None;
        for counts in &proven {
            if operator.replace(counts.rule.operator) != Some(counts.rule.operator) {
                let heading = counts.rule.operator.name();
                table += &format!("{heading:width$}  passed  failed  unsupported  not run\n", width = width + 2);
            }
            table += &line(counts, width);
        }
        if !unproven.is_empty() {
            table += "rules that no case here proves: ";
            let names = unproven.iter().map(|counts| format!("{}/{}", counts.rule.operator.name(), counts.rule.id));
            table += &names.collect::<Vec<_>>().join(", ");
            table.push('\n');
        }
        table
    }
}

fn line(RuleCount { rule, cases }: &RuleCount, width: usize) -> String {
    let Counts { passed, failed, unsupported, not_run } = cases;
    let mark = match (failed, passed) {
        (1.., _) => 'X',
        (0, 1..) => ' ',
        (0, 0) => '-',
    };
    let (title, link) = (&rule.title, rule.link());
    format!("{mark} {title:width$}  {passed:6}  {failed:6}  {unsupported:11}  {not_run:7}  {link}\n")
}
