//! Whether a contender's answer is right.

use kvcache_kernels::Problem;
use kvcache_op::{ElementType, Error};

use crate::case::Case;

/// What a call has written; the right answer is what the reference kernel wrote.
pub struct Answer {
    /// `key` and `value`.
    outputs: [Vec<u8>; 2],
    /// Cache and scale in the slots of the current tokens, one after another.
    stored: Vec<u8>,
}

/// Computes the right answer of `case`.
///
/// # Errors
/// If the operator refuses the call.
pub(crate) fn expect(case: &mut Case) -> Result<Answer, Error> {
    case.run_reference()?;
    written(case)
}

/// What has been written by whoever ran last.
///
/// # Errors
/// If the operator refuses the call.
pub(crate) fn written(case: &mut Case) -> Result<Answer, Error> {
    let mut stored = Vec::new();
    visit_stored(&mut case.problem()?, |bytes| stored.extend_from_slice(bytes));
    Ok(Answer { outputs: case.output_bytes().map(|bytes| bytes.to_vec()), stored })
}

/// Overwrites all that a contender must write, so that an answer cannot be left over.
///
/// # Errors
/// If the operator refuses the call.
pub(crate) fn scramble(case: &mut Case, byte: u8) -> Result<(), Error> {
    for bytes in case.output_bytes() {
        bytes.fill(byte);
    }
    visit_stored(&mut case.problem()?, |bytes| bytes.fill(byte));
    Ok(())
}

/// Compares what a contender wrote with the right answer, bit for bit; says what differs.
///
/// # Errors
/// If the operator refuses the call.
pub(crate) fn compare(case: &mut Case, answer: &Answer) -> Result<Option<String>, Error> {
    for ((name, found), wanted) in ["key", "value"].into_iter().zip(case.output_bytes()).zip(&answer.outputs) {
        if let Some(at) = first_difference(found, wanted) {
            return Ok(Some(format!("{name} differs at byte {at} of {}", wanted.len())));
        }
    }
    let mut stored = Vec::with_capacity(answer.stored.len());
    visit_stored(&mut case.problem()?, |bytes| stored.extend_from_slice(bytes));
    let difference = first_difference(&stored, &answer.stored);
    Ok(difference.map(|at| format!("cache or scale differs at byte {at} of what is stored")))
}

fn first_difference(found: &[u8], wanted: &[u8]) -> Option<usize> {
    if found == wanted {
        return None;
    }
    found.iter().zip(wanted).position(|(a, b)| a != b).or(Some(wanted.len()))
}

/// Gives `visit` the bytes of cache and scale of each head of each current token.
fn visit_stored(problem: &mut Problem<'_>, mut visit: impl FnMut(&mut [u8])) {
    let (geometry, indices, pointers) = (*problem.geometry(), *problem.indices(), problem.pointers());
    let bytes = |element: ElementType, len: usize| element.bytes(len).unwrap_or_default();
    for b in 0..geometry.batch {
        let sequence = indices.sequence(b);
        for t in sequence.start_pos..sequence.all.len() {
            let slot = indices.addressing.slot(b, t);
            for (kv, h) in (0..2).flat_map(|kv| (0..geometry.num_heads).map(move |h| (kv, h))) {
                let at = bytes(geometry.t2, geometry.cache_at(slot, kv, h));
                // SAFETY: a head of a slot that the problem has checked, which nobody else touches meanwhile.
                visit(unsafe {
                    std::slice::from_raw_parts_mut(pointers.cache.add(at), bytes(geometry.t2, geometry.head_dim))
                });
                if let Some(quant) = geometry.quant {
                    let at = bytes(quant.t3, geometry.scale_at(slot, kv, h));
                    let len = bytes(quant.t3, geometry.head_dim / quant.group);
                    // SAFETY: as above, for the scales.
                    visit(unsafe { std::slice::from_raw_parts_mut(pointers.scale.add(at), len) });
                }
            }
        }
    }
}
