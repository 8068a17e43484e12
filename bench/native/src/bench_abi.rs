//! What is measured, in C: calls, limits and rooflines, and the comparison of answers.

use crate::answer::Answer;
use crate::call::BoundCall;
use crate::error_text::ErrorText;
use crate::limit::Limit;
use crate::moved::Moved;
use crate::roofline;
use crate::sample::Sample;
use crate::team::Team;

/// A part of a call that is measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The kernel's store phase.
    Store,
    /// The kernel's load phase.
    Load,
    /// All that a user calls: the check of the inputs, then both phases.
    Whole,
}

impl Phase {
    fn from_number(number: i32) -> Result<Self, String> {
        match number {
            0 => Ok(Self::Store),
            1 => Ok(Self::Load),
            2 => Ok(Self::Whole),
            _ => Err(format!("phase: expected 0, 1 or 2, got {number}")),
        }
    }

    fn directions(self) -> &'static [roofline::Direction] {
        use roofline::Direction::{Load, Store};
        match self {
            Self::Store => &[Store],
            Self::Load => &[Load],
            Self::Whole => &[Store, Load],
        }
    }
}

/// Makes a team of `threads`.
///
/// # Safety
/// `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_team_new(threads: usize, team: &mut *mut Team, error: &mut ErrorText) -> i32 {
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(Team::new(threads), |made| *team = Box::into_raw(Box::new(made))) }
}

/// Ends a team; null is no team.
///
/// # Safety
/// `team` was made by [`bench_team_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_team_free(team: *mut Team) {
    if !team.is_null() {
        // SAFETY: `bench_team_new` made it as a `Box`, and nobody uses it again.
        drop(unsafe { Box::from_raw(team) });
    }
}

/// Measures the loop that reads `reads` lines of 64 bytes and writes `writes` lines, taking 1, 4 or 8 `pages` in turn,
/// with non-temporal stores if `stream`. `moved` is what one iteration has moved.
///
/// # Safety
/// `from` is valid for reads of `reads` lines and `to`, aligned to a line, for writes of `writes` lines; they do not
/// overlap, and nobody else uses `to` meanwhile. `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_limit(
    team: &Team,
    pages: usize,
    stream: bool,
    from: *const u8,
    reads: usize,
    to: *mut u8,
    writes: usize,
    iterations: usize,
    sample: &mut Sample,
    moved: &mut Moved,
    error: &mut ErrorText,
) -> i32 {
    let limit = Limit { from, reads, to, writes, pages, stream };
    // SAFETY: `from` and `to` are valid for the lines, and nobody else uses `to`: this function's conditions.
    let measured = team.measure_moved(iterations, || unsafe { limit.run(team) });
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(measured, |measured| (*sample, *moved) = measured) }
}

/// Measures a phase of a call: 0 store, 1 load, 2 the whole operator with the check of its inputs.
///
/// # Safety
/// The call's memory is as [`BoundCall::new`] requires; `error` is a buffer of its capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_call(
    call: &mut BoundCall,
    team: &Team,
    phase: i32,
    iterations: usize,
    sample: &mut Sample,
    error: &mut ErrorText,
) -> i32 {
    let measured = Phase::from_number(phase).and_then(|phase| measure(call, phase, team, iterations));
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(measured, |measured| *sample = measured) }
}

fn measure(call: &mut BoundCall, phase: Phase, team: &Team, iterations: usize) -> Result<Sample, String> {
    use kvcache_kernels::{Cpu, Kernel};
    if phase == Phase::Whole {
        let mut last = Ok(());
        let sample = team.measure(iterations, || last = call.run(team));
        return last.map(|()| sample);
    }
    let mut problem = call.problem().map_err(|error| error.to_string())?;
    Ok(match phase {
        Phase::Store => team.measure(iterations, || Cpu::default().store(&mut problem, team)),
        _ => team.measure(iterations, || Cpu::default().load(&mut problem, team)),
    })
}

/// Measures the reads and writes of a phase, numbered as for [`bench_call`], without its arithmetic, in the order 0
/// (row by row) or 1 (in blocks of tokens): with `stream` whole lines are written with non-temporal stores. `moved` is
/// what one iteration has moved.
///
/// # Safety
/// As for [`bench_call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_roofline(
    call: &mut BoundCall,
    team: &Team,
    phase: i32,
    order: usize,
    stream: bool,
    iterations: usize,
    sample: &mut Sample,
    moved: &mut Moved,
    error: &mut ErrorText,
) -> i32 {
    let measured = Phase::from_number(phase).and_then(|phase| {
        let mut problem = call.problem().map_err(|error| error.to_string())?;
        team.measure_moved(iterations, || {
            let parts = phase.directions().iter();
            parts.map(|&direction| roofline::run(&mut problem, direction, order, stream, team)).sum()
        })
    });
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(measured, |measured| (*sample, *moved) = measured) }
}

/// Computes the right answer of a call with the reference kernel.
///
/// # Safety
/// As for [`bench_call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_answer_reference(
    call: &mut BoundCall,
    answer: &mut *mut Answer,
    error: &mut ErrorText,
) -> i32 {
    let made = call.run_reference().and_then(|()| Answer::of(call));
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(made, |made| *answer = Box::into_raw(Box::new(made))) }
}

/// What a contender has written, to compare others with.
///
/// # Safety
/// As for [`bench_call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_answer_written(
    call: &mut BoundCall,
    answer: &mut *mut Answer,
    error: &mut ErrorText,
) -> i32 {
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(Answer::of(call), |made| *answer = Box::into_raw(Box::new(made))) }
}

/// Frees an answer; null is no answer.
///
/// # Safety
/// `answer` was made by [`bench_answer_reference`] or [`bench_answer_written`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_answer_free(answer: *mut Answer) {
    if !answer.is_null() {
        // SAFETY: both functions make it as a `Box`, and nobody uses it again.
        drop(unsafe { Box::from_raw(answer) });
    }
}

/// Overwrites all that a contender must write with a byte.
///
/// # Safety
/// As for [`bench_call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_scramble(call: &mut BoundCall, byte: u8, error: &mut ErrorText) -> i32 {
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(Answer::scramble(call, byte), |()| ()) }
}

/// Whether what is written is the answer, bit for bit; if not, the reason says what differs.
///
/// # Safety
/// As for [`bench_call`]; `answer` is of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_compare(call: &mut BoundCall, answer: &Answer, error: &mut ErrorText) -> i32 {
    // SAFETY: `error` is a buffer, as this function requires.
    unsafe { error.status(answer.compare(call), |()| ()) }
}
