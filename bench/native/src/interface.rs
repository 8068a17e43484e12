//! The C interface that the Python driver loads. Texts go to a buffer of [`TEXT`] bytes, with a NUL at the end.

use std::fmt::Display;

use kvcache_op::Error;

use crate::case::{Case, Description, Phase};
use crate::limit::Limit;
use crate::moved::Moved;
use crate::sample::Sample;
use crate::team::Team;
use crate::verdict::{self, Answer};

/// The size of a caller's buffer for a text.
pub const TEXT: usize = 1024;

/// Makes a team of `threads`; null if they cannot be started.
#[unsafe(no_mangle)]
pub extern "C" fn bench_team_new(threads: usize) -> *mut Team {
    Team::new(threads).map_or(std::ptr::null_mut(), |team| Box::into_raw(Box::new(team)))
}

/// Ends a team.
///
/// # Safety
/// `team` is of [`bench_team_new`] and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_team_free(team: *mut Team) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(team) });
}

/// Measures the loop that reads `reads` lines of 64 bytes and writes `writes` lines, taking 1, 4 or 8 `pages` in turn,
/// with non-temporal stores if `stream`. `moved` is what one iteration has moved. False, with the reason in `text`, if it
/// cannot take so many pages in turn.
///
/// # Safety
/// `team` is alive; `from` is valid for reads of `reads` lines and `to`, aligned to a line, for writes of `writes` lines;
/// they do not overlap, and nobody else uses `to` meanwhile. `text` is a buffer for a text.
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
    text: *mut u8,
) -> bool {
    let limit = Limit { from, reads, to, writes, pages, stream };
    let mut last = None;
    // SAFETY: the memory is as `Limit::run` asks: this function's own conditions.
    let measured = team.measure(iterations, || last = unsafe { limit.run(team) });
    match last {
        Some(last) => {
            (*sample, *moved) = (measured, last);
            true
        }
        None => {
            // SAFETY: `text` is a buffer for a text, as this function asks.
            unsafe { write_text(text, &format!("{pages} pages in turn: expected 1, 4 or 8")) };
            false
        }
    }
}

/// Makes a case; null, with the reason in `text`, if the operator refuses the call.
///
/// # Safety
/// As for [`Case::new`]; `text` is a buffer for a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_new(description: &Description, text: *mut u8) -> *mut Case {
    // SAFETY: the caller's promise.
    match unsafe { Case::new(description) } {
        Ok(case) => Box::into_raw(Box::new(case)),
        Err(error) => {
            // SAFETY: as above.
            unsafe { write_text(text, &error) };
            std::ptr::null_mut()
        }
    }
}

/// Ends a case.
///
/// # Safety
/// `case` is of [`bench_case_new`] and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_free(case: *mut Case) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(case) });
}

/// Measures a phase of a case: 0 store, 1 load, 2 the whole operator with the check of its inputs. False, with the reason
/// in `text`, if the operator refuses the call.
///
/// # Safety
/// `case` and `team` are alive, and the case's memory is as [`Case::new`] asks; `text` is a buffer for a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_measure(
    case: &mut Case,
    team: &Team,
    phase: i32,
    iterations: usize,
    sample: &mut Sample,
    text: *mut u8,
) -> bool {
    // SAFETY: the caller's promise.
    let measured =
        case.measure(Phase::from_number(phase), team, iterations).map_err(|error| unsafe { write_text(text, &error) });
    measured.map(|measured| *sample = measured).is_ok()
}

/// Measures the traffic of a phase, numbered as for [`bench_case_measure`], without its arithmetic, by the schedule 0 (row
/// by row) or 1 (in blocks of tokens): with `stream` whole lines are written past the caches. `moved` is what one
/// iteration has moved. False, with the reason in `text`, if the operator refuses the call, its rows are not whole lines
/// or there is no such schedule.
///
/// # Safety
/// As for [`bench_case_measure`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_traffic(
    case: &mut Case,
    team: &Team,
    phase: i32,
    schedule: usize,
    stream: bool,
    iterations: usize,
    sample: &mut Sample,
    moved: &mut Moved,
    text: *mut u8,
) -> bool {
    let reason = match case.measure_traffic(Phase::from_number(phase), schedule, stream, team, iterations) {
        Ok(Some(measured)) => {
            (*sample, *moved) = measured;
            return true;
        }
        Ok(None) => "the rows are not whole cache lines, or there is no such schedule".to_owned(),
        Err(error) => error.to_string(),
    };
    // SAFETY: the caller's promise.
    unsafe { write_text(text, &reason) };
    false
}

/// Computes the right answer of a case with the reference kernel; null, with the reason in `text`, if the call is refused.
///
/// # Safety
/// As for [`bench_case_measure`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_expect(case: &mut Case, text: *mut u8) -> *mut Answer {
    // SAFETY: the caller's promise.
    unsafe { answer_or_null(verdict::expect(case), text) }
}

/// Frees an answer.
///
/// # Safety
/// `answer` is of [`bench_case_expect`] and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_answer_free(answer: *mut Answer) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(answer) });
}

/// Overwrites all that a contender must write with a byte. False, with the reason in `text`, if the call is refused.
///
/// # Safety
/// As for [`bench_case_measure`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_scramble(case: &mut Case, byte: u8, text: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    verdict::scramble(case, byte).map_err(|error| unsafe { write_text(text, &error) }).is_ok()
}

/// What a contender has written, to compare others with; null, with the reason in `text`, if the call is refused.
///
/// # Safety
/// As for [`bench_case_measure`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_written(case: &mut Case, text: *mut u8) -> *mut Answer {
    // SAFETY: the caller's promise.
    unsafe { answer_or_null(verdict::written(case), text) }
}

/// Whether a contender has given the right answer, bit for bit; if not, `text` says what differs.
///
/// # Safety
/// As for [`bench_case_measure`]; `answer` is of this case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bench_case_compare(case: &mut Case, answer: &Answer, text: *mut u8) -> bool {
    let difference = match verdict::compare(case, answer) {
        Ok(None) => return true,
        Ok(Some(difference)) => difference,
        Err(error) => error.to_string(),
    };
    // SAFETY: the caller's promise.
    unsafe { write_text(text, &difference) };
    false
}

/// An answer for the driver.
///
/// # Safety
/// `text` is a buffer for a text.
unsafe fn answer_or_null(answer: Result<Answer, Error>, text: *mut u8) -> *mut Answer {
    match answer {
        Ok(answer) => Box::into_raw(Box::new(answer)),
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { write_text(text, &error) };
            std::ptr::null_mut()
        }
    }
}

/// Writes a text, cut to the buffer.
///
/// # Safety
/// `buffer` is valid for writes of [`TEXT`] bytes.
unsafe fn write_text(buffer: *mut u8, text: &dyn Display) {
    let text = text.to_string();
    let len = text.len().min(TEXT - 1);
    // SAFETY: the caller's promise; the text and the NUL fit.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr(), len);
        buffer.add(len).write(0);
    }
}
