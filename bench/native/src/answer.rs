//! Whether a contender's answer is right: it must match the reference kernel's bit for bit.

use kvcache_kernels::{CacheBytes, Problem};
use kvcache_op::Error;

use crate::call::BoundCall;

/// What a call has written.
pub struct Answer {
    /// `key` and `value`.
    outputs: [Vec<u8>; 2],
    /// Cache and scale in the slots of the current tokens, one after another.
    stored: Vec<u8>,
}

impl Answer {
    /// What has been written by whoever ran last.
    ///
    /// # Errors
    /// If the operator refuses the call.
    pub(crate) fn of(call: &mut BoundCall) -> Result<Self, Error> {
        let mut stored = Vec::new();
        visit_stored(&mut call.problem()?, |bytes| stored.extend_from_slice(bytes));
        Ok(Self { outputs: call.output_bytes().map(|bytes| bytes.to_vec()), stored })
    }

    /// Overwrites all that a contender must write, so that an answer cannot be left over.
    ///
    /// # Errors
    /// If the operator refuses the call.
    pub(crate) fn scramble(call: &mut BoundCall, byte: u8) -> Result<(), Error> {
        for bytes in call.output_bytes() {
            bytes.fill(byte);
        }
        visit_stored(&mut call.problem()?, |bytes| bytes.fill(byte));
        Ok(())
    }

    /// Compares what a contender has written with this answer, bit for bit.
    ///
    /// # Errors
    /// What differs, or why the operator refuses the call.
    pub(crate) fn compare(&self, call: &mut BoundCall) -> Result<(), String> {
        for ((name, got), expected) in ["key", "value"].into_iter().zip(call.output_bytes()).zip(&self.outputs) {
            if let Some(at) = first_difference(got, expected) {
                return Err(format!("{name} differs at byte {at} of {}", expected.len()));
            }
        }
        let mut stored = Vec::with_capacity(self.stored.len());
        let mut problem = call.problem().map_err(|error| error.to_string())?;
        visit_stored(&mut problem, |bytes| stored.extend_from_slice(bytes));
        match first_difference(&stored, &self.stored) {
            Some(at) => Err(format!("cache or scale differs at byte {at} of what is stored")),
            None => Ok(()),
        }
    }
}

fn first_difference(got: &[u8], expected: &[u8]) -> Option<usize> {
    if got == expected {
        return None;
    }
    got.iter().zip(expected).position(|(a, b)| a != b).or(Some(expected.len()))
}

/// Gives `visit` the bytes of cache and scale of each head of each current token.
fn visit_stored(problem: &mut Problem<'_>, mut visit: impl FnMut(&mut [u8])) {
    let (geometry, indices, pointers) = (*problem.geometry(), *problem.indices(), problem.pointers());
    let bytes = CacheBytes::new(&geometry);
    for b in 0..geometry.batch {
        let sequence = indices.sequence(b);
        for t in sequence.start_pos..sequence.all.len() {
            let slot = indices.addressing.slot(b, t);
            for (kv, h) in (0..2).flat_map(|kv| (0..geometry.num_heads).map(move |h| (kv, h))) {
                let (cache_at, scale_at) = bytes.head(slot, kv, h);
                // SAFETY: `Problem`: slot < max_t, so the head lies in the cache; `&mut Problem` keeps others away.
                visit(unsafe { std::slice::from_raw_parts_mut(pointers.cache.add(cache_at), bytes.cache.head_len) });
                if geometry.quant.is_some() {
                    let len = bytes.scale.head_len;
                    // SAFETY: as for the cache; the scale has a group's number for each of the head's groups.
                    visit(unsafe { std::slice::from_raw_parts_mut(pointers.scale.add(scale_at), len) });
                }
            }
        }
    }
}
