//! A report as JUnit's XML.

use std::collections::HashMap;
use std::time::Duration;

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use super::entry::{Entry, Report, Verdict};
use crate::case::Operator;

impl Report {
    /// The report as JUnit's XML: a test suite for each operator, a test case for each case. Its properties name the
    /// rules that it proves; a case that is unsupported or was not run is skipped, with the reason.
    pub fn junit(&self) -> String {
        let mut junit = quick_junit::Report::new(self.implementation.as_str());
        let mut times: HashMap<Operator, Duration> = HashMap::new();
        for entry in &self.entries {
            *times.entry(entry.operator).or_default() += entry.time;
        }
        for operator in Operator::ALL.into_iter().filter(|operator| times.contains_key(operator)) {
            let mut suite = TestSuite::new(operator.name());
            suite.set_time(times[&operator]);
            let entries = self.entries.iter().filter(|entry| entry.operator == operator);
            suite.add_test_cases(entries.map(Entry::test_case));
            junit.add_test_suite(suite);
        }
        junit.set_time(times.into_values().sum());
        junit.to_string().expect("text is written to memory")
    }
}

impl Entry {
    fn test_case(&self) -> TestCase {
        let status = match &self.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::Failed(difference) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(difference.to_string());
                status.set_type(difference.flaw());
                status.set_description(self.about.as_str());
                status
            }
            Verdict::Unsupported(reason) | Verdict::NotRun(reason) => {
                let mut status = TestCaseStatus::skipped();
                status.set_message(reason.as_str());
                status
            }
        };
        let mut case = TestCase::new(self.case.as_str(), status);
        case.set_classname(format!("{}.{}", self.operator.suite().name(), self.operator.name()));
        case.set_time(self.time);
        for rule in &self.rules {
            case.add_property(("rule", rule.as_str()));
        }
        case
    }
}
