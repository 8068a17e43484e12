//! The times of all workloads, of answers that are right.

use std::fmt;

use serde::Serialize;

use super::rounds::{Plan, Rounds};
use super::timed::Timed;
use super::workload::Workload;
use crate::case::{After, Case, Expected};
use crate::demand::Demand;
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::oracle::Oracle;
use crate::suite::Suite;

/// How long calls take on this machine. Displayed, it is a line for each workload, and what the numbers mean.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The workloads.
    pub rows: Vec<Row>,
    /// The processors that this process may use.
    pub processors: usize,
}

/// A workload's line.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: &'static str,
    /// The bytes that a call must read and write.
    pub bytes: u64,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
}

/// What was measured of a workload.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Medians in nanoseconds.
    Times {
        /// Of a call.
        call: u64,
        /// Of the loop that reads and writes as many bytes.
        copy: u64,
        /// `call / copy`.
        ratio: f64,
    },
    /// Nothing, for an answer was wrong, or there was none.
    Wrong(String),
    /// Nothing, for the implementation does not do such calls.
    Unsupported(String),
}

/// Times the workloads on an implementation, whose answers must be those of the [`Oracle`].
///
/// # Errors
/// A message, if the oracle gives no answer.
pub fn measure(implementation: &dyn Timed, workloads: &[Workload], rounds: u64) -> Result<Table, String> {
    measure_with(&Oracle::default(), implementation, workloads, rounds)
}

/// The same with any oracle.
fn measure_with(
    oracle: &dyn Implementation,
    implementation: &dyn Timed,
    workloads: &[Workload],
    rounds: u64,
) -> Result<Table, String> {
    let row = |workload: &Workload| {
        let traffic = workload.traffic();
        let case = workload.case(expected(workload, oracle)?);
        let measured = match implementation.cannot_run(&case) {
            Some(reason) => Measured::Unsupported(reason),
            None => match times(implementation, &case, Plan { traffic, rounds }) {
                Ok(Rounds { calls, copies }) => {
                    let (call, copy) = (median(calls), median(copies));
                    Measured::Times { call, copy, ratio: call as f64 / copy.max(1) as f64 }
                }
                Err(reason) => Measured::Wrong(reason),
            },
        };
        Ok(Row { workload: workload.name, bytes: traffic.read + traffic.written, measured })
    };
    let rows = workloads.iter().map(row).collect::<Result<_, String>>()?;
    Ok(Table { rows, processors: std::thread::available_parallelism().map_or(1, usize::from) })
}

/// What the call of a workload must give.
fn expected(workload: &Workload, oracle: &dyn Implementation) -> Result<Expected, String> {
    // What the case itself expects is of no account to an implementation.
    let case = workload.case(Expected::Refusal { kind: String::new(), mentions: Vec::new() });
    match oracle.run(&case)?.pop() {
        Some(CallResult { outcome: Outcome::Done(outputs), cache, scale }) => {
            Ok(Expected::Success(Box::new(After { outputs, cache, scale })))
        }
        Some(CallResult { outcome: Outcome::Refused { message, .. }, .. }) => {
            Err(format!("the oracle refuses {}: {message}", workload.name))
        }
        None => Err(format!("the oracle makes no call of {}", workload.name)),
    }
}

/// The times of calls, of which one made before and the last are right.
fn times(implementation: &dyn Timed, case: &Case, plan: Plan) -> Result<Rounds, String> {
    check(case, &implementation.run(case)?)?;
    let (rounds, result) = implementation.time(case, plan)?;
    check(case, &[result]).map_err(|difference| format!("after many calls: {difference}"))?;
    Ok(rounds)
}

fn check(case: &Case, results: &[CallResult]) -> Result<(), String> {
    case.difference(results, Demand::AsExpected).map_or(Ok(()), |difference| Err(difference.to_string()))
}

/// The lower one of two in the middle.
fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.workload.len()).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>10}  {:>12}  {:>12}  {:>8}", "performance", "moved", "call", "copy", "call/copy")?;
        for Row { workload, bytes, measured } in &self.rows {
            write!(f, "{workload:width$}  {:>6.2} MiB  ", *bytes as f64 / f64::from(1 << 20))?;
            match measured {
                Measured::Times { call, copy, ratio } => {
                    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
                    writeln!(f, "{:>9.1} us  {:>9.1} us  {ratio:>8.2}", microseconds(*call), microseconds(*copy))?;
                }
                Measured::Wrong(reason) => writeln!(f, "not timed, for it is wrong: {reason}")?,
                Measured::Unsupported(reason) => writeln!(f, "unsupported: {reason}")?,
            }
        }
        let Self { processors, .. } = self;
        if cfg!(debug_assertions) {
            writeln!(f, "This program was built without optimization: the copy is slow, and so is what runs in it.")?;
        }
        write!(
            f,
            "Medians on this machine ({processors} processors), call and copy in turns. The copy is a loop on one thread \
             that reads and\nwrites as many bytes as the call must, each in one piece, and computes nothing. Every answer \
             was checked bit for bit\nbefore it was timed, and the last one again. These ratios are no part of the verdict."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::performance::{Traffic, interleaved};

    /// Gives the cache as it is and rows of zeros, or from the second call on of ones.
    struct Zeros {
        wrong_later: bool,
    }

    impl Zeros {
        fn result(&self, case: &Case, later: bool) -> CallResult {
            let mut key = case.steps[0].inputs.current_key.clone();
            key.bytes_mut().fill(u8::from(later && self.wrong_later));
            let outputs = crate::Outputs { value: key.clone(), key };
            CallResult { outcome: Outcome::Done(outputs), cache: case.cache.clone(), scale: case.scale.clone() }
        }
    }

    impl Implementation for Zeros {
        fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
            Ok(vec![self.result(case, false)])
        }

        fn cannot_run(&self, case: &Case) -> Option<String> {
            case.name.contains("int8").then(|| "no int8".to_owned())
        }
    }

    impl Timed for Zeros {
        fn time(&self, case: &Case, plan: Plan) -> Result<(Rounds, CallResult), String> {
            let small = Plan { traffic: Traffic { read: 10, written: 10 }, ..plan };
            Ok((interleaved(small, || Ok::<_, String>(()))?, self.result(case, true)))
        }
    }

    fn measured(implementation: &Zeros, oracle: &Zeros, name: &str) -> Measured {
        let workloads = crate::performance::workloads();
        let chosen = workloads.iter().find(|workload| workload.name == name).expect("the workload");
        let mut table =
            measure_with(oracle, implementation, std::slice::from_ref(chosen), 3).expect("the oracle answers");
        table.rows.pop().expect("its row").measured
    }

    #[test]
    fn only_what_is_right_has_a_figure() {
        let right = Zeros { wrong_later: false };
        let short = "decode, one short sequence";
        assert!(matches!(measured(&right, &right, short), Measured::Times { .. }));
        let Measured::Wrong(reason) = measured(&Zeros { wrong_later: true }, &right, short) else {
            panic!("a wrong answer has a figure")
        };
        assert!(reason.starts_with("after many calls: "), "{reason}");
        assert!(
            matches!(measured(&right, &right, "decode, int8"), Measured::Unsupported(reason) if reason == "no int8")
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!([median(vec![3, 1, 2]), median(vec![4, 1, 3, 2]), median(vec![7])], [2, 2, 7]);
    }
}
