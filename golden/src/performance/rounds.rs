//! Calls in turns with the copying loop.

use std::time::{Duration, Instant};

use super::copying::Copying;
use super::workload::Traffic;

/// A round's part lasts at least so long, by repetition.
const PART: Duration = Duration::from_millis(2);

/// More often nothing is repeated in a round.
const MOST: u128 = 10_000;

/// How a call is timed.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What the copying loop reads and writes.
    pub traffic: Traffic,
    /// How many rounds there are.
    pub rounds: u64,
}

/// Nanoseconds of one call, and of the copying loop once, in each round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rounds {
    /// Those of a call.
    pub calls: Vec<u64>,
    /// Those of the loop.
    pub copies: Vec<u64>,
}

/// Makes a call and runs the copying loop in turns, after one of each that does not count. In a round both are repeated
/// until they last two milliseconds, so that a short one can be timed.
///
/// # Errors
/// The first of the calls.
///
/// # Panics
/// If the loop's copy is wrong.
pub fn interleaved<E>(plan: Plan, mut call: impl FnMut() -> Result<(), E>) -> Result<Rounds, E> {
    let mut copying = Copying::new(plan.traffic);
    let mut copy = || {
        copying.run();
        Ok(())
    };
    let (calls, copies) = (repetitions(&mut call)?, repetitions(&mut copy)?);
    let mut rounds = Rounds::default();
    for _ in 0..plan.rounds {
        rounds.calls.push(nanoseconds(calls, &mut call)?);
        rounds.copies.push(nanoseconds(copies, &mut copy)?);
    }
    assert!(copying.is_right(), "a copy is not what was copied");
    Ok(rounds)
}

/// How often to repeat what was not yet done.
fn repetitions<E>(action: &mut impl FnMut() -> Result<(), E>) -> Result<u64, E> {
    action()?;
    let once = u128::from(nanoseconds(1, action)?).max(1);
    Ok(u64::try_from((PART.as_nanos() / once).clamp(1, MOST)).unwrap_or(1))
}

/// The time of one of so many actions.
fn nanoseconds<E>(repetitions: u64, action: &mut impl FnMut() -> Result<(), E>) -> Result<u64, E> {
    let start = Instant::now();
    for _ in 0..repetitions {
        action()?;
    }
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / repetitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_timed_in_every_round() {
        let plan = Plan { traffic: Traffic { read: 1 << 20, written: 1 << 20 }, rounds: 3 };
        let mut calls = 0;
        let rounds = interleaved(plan, || {
            calls += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!((rounds.calls.len(), rounds.copies.len()), (3, 3));
        assert!(calls >= 5, "{calls}");
        assert!(rounds.calls.iter().all(|&nanoseconds| nanoseconds >= 1_000_000), "{rounds:?}");
        assert!(rounds.copies.iter().all(|&nanoseconds| nanoseconds > 0), "{rounds:?}");
    }

    #[test]
    fn an_error_ends_the_rounds() {
        let plan = Plan { traffic: Traffic { read: 1, written: 1 }, rounds: 3 };
        assert_eq!(interleaved(plan, || Err("refused")), Err("refused"));
    }
}
