//! The oracle of calls of `KeyValueCache` on a device with any index inputs, legal or not: the reference kernel on the
//! tokens that have a slot.

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::random::index_inputs;
use kvcache_conformance::{Call, CallResult, Difference, Expected, Tensor, Tensors};
use kvcache_op::cuda::{Finding, Status};
use kvcache_op::{Attributes, CacheLayout, CacheMode};
use kvcache_testing::random::case;

use crate::device::untouched;

/// The tensors after the call, and every status that the device may report.
pub fn expected(call: &Call) -> (Tensors, Vec<Status>) {
    let attributes = cache_attributes(&call.attributes);
    let rows_of_key = call.inputs["kvstarts"].indices().last().copied().expect("at least the total");
    let [_, num_heads, head_dim] = call.inputs["current_key"].shape().try_into().expect("rank 3");
    let shape = [rows_of_key as usize, num_heads * attributes.num_repeat as usize, head_dim];
    let state = [("cache", &call.cache), ("scale", &call.scale)].into_iter();
    let state = state.filter_map(|(name, tensor)| Some((name, tensor.clone()?)));
    let outputs = ["key", "value"].map(|name| (name, untouched(call.t1(), &shape)));
    let mut oracle = Oracle { call, attributes, after: state.chain(outputs).collect() };
    let findings = oracle.run();
    (oracle.after, findings)
}

/// Where the tensors after a call are not as expected.
pub fn difference(call: &Call, got: CallResult, expected: Tensors) -> Option<Difference> {
    let mut case = case(call.clone());
    case.steps[0].expected = Expected::Success(expected);
    case.difference(&[got])
}

/// The slot of a token of sequence `b`.
pub fn slot(attributes: &Attributes, call: &Call, b: usize, token: i128) -> Result<i64, Finding> {
    let cachestarts = &call.inputs["cachestarts"];
    let layout = CacheLayout::from_code(attributes.cache_layout).expect("a legal layout");
    let max_t = layout.dims(call.cache().shape().try_into().expect("rank 5")).max_t as i128;
    // In offset mode a sequence is one page, as long as an index can be.
    let (max_p, page_size) = match attributes.cache_mode == CacheMode::Offset.code() {
        true => (1, i64::MAX),
        false => (cachestarts.shape()[1], attributes.page_size),
    };
    let page = token / i128::from(page_size);
    if page >= max_p as i128 {
        return Err(Finding::TooManyPages);
    }
    let start = i128::from(cachestarts.indices()[b * max_p + page as usize]);
    let slot = start + token % i128::from(page_size);
    // A page that starts outside is wrong even where a token of it would be inside.
    if start < 0 || start >= max_t || slot >= max_t { Err(Finding::Slot) } else { Ok(slot as i64) }
}

struct Oracle<'a> {
    call: &'a Call,
    attributes: Attributes,
    after: Tensors,
}

impl Oracle<'_> {
    fn run(&mut self) -> Vec<Status> {
        let [seqstarts, start_pos] = ["seqstarts", "start_pos"].map(|name| self.call.inputs[name].indices());
        let rows = [&self.call.inputs["current_key"], &self.after["key"]].map(|tensor| tensor.shape()[0] as i128);
        let row_elements: usize = self.call.inputs["current_key"].shape()[1..].iter().product();
        // What has no rows, or rows without elements, is not launched.
        let is_launched = |rows: i128| rows > 0 && row_elements > 0;
        if !rows.into_iter().any(is_launched) {
            return Vec::new();
        }
        let batch = start_pos.len();
        let status = |finding, batch: usize, token: i128| {
            let token = token.min(i128::from(u32::MAX)) as u32;
            Status { finding, batch: batch as u32, token }
        };
        let wrong_length = |b: usize| {
            let (start, end) = (seqstarts[b], seqstarts[b + 1]);
            match start < 0 || end < start || (b == 0 && start != 0) {
                true => Some(status(Finding::Seqstarts, b, 0)),
                false => (start_pos[b] < 0).then(|| status(Finding::StartPos, b, 0)),
            }
        };
        let mut findings: Vec<_> = (0..batch).filter_map(wrong_length).collect();
        if !findings.is_empty() || batch == 0 {
            return findings;
        }
        let seqlen = |b: usize| i128::from(seqstarts[b + 1] - seqstarts[b]);
        // The store begins behind the past tokens.
        let tokens = |is_load: bool, b: usize| {
            let past = i128::from(start_pos[b]);
            (if is_load { 0 } else { past })..past + seqlen(b)
        };
        for (is_load, rows) in [false, true].into_iter().zip(rows).filter(|&(_, rows)| is_launched(rows)) {
            let total: i128 = (0..batch).map(|b| tokens(is_load, b)).map(|tokens| tokens.end - tokens.start).sum();
            if total > rows {
                findings.push(status(Finding::TooManyTokens, batch, 0));
                continue;
            }
            if total < rows {
                findings.push(status(Finding::TooFewTokens, batch, 0));
            }
            let all = (0..batch).flat_map(|b| tokens(is_load, b).map(move |token| (b, token)));
            let (mut rows, mut slots) = (Vec::new(), Vec::new());
            for (row, (b, token)) in all.enumerate() {
                match slot(&self.attributes, self.call, b, token) {
                    Err(finding) => findings.push(status(finding, b, token)),
                    Ok(slot) => {
                        rows.push(row);
                        slots.push(slot);
                    }
                }
            }
            self.move_rows(is_load, &rows, &slots);
        }
        findings
    }

    /// Stores rows of the current tokens into these slots, or loads the slots into rows of the outputs: a call of one
    /// sequence, of which each page is a slot.
    fn move_rows(&mut self, is_load: bool, rows: &[usize], slots: &[i64]) {
        let n = rows.len();
        if n == 0 {
            return;
        }
        let mut inputs = index_inputs(&[if is_load { (n, 0) } else { (0, n) }]);
        inputs.insert("cachestarts", Tensor::of_indices(slots, &[1, n]));
        for name in ["current_key", "current_value"] {
            inputs.insert(name, rows_of(&self.call.inputs[name], if is_load { &[] } else { rows }));
        }
        let mut attributes = self.call.attributes.clone();
        attributes.extend([("cache_mode", CacheMode::Paged.code()), ("page_size", 1)]);
        let [cache, scale] = ["cache", "scale"].map(|name| self.after.remove(name));
        let call = Call { inputs, attributes, cache, scale, ..self.call.clone() };
        let Expected::Success(mut after) = case(call).steps.remove(0).expected else { panic!("legal tokens") };
        let outputs = ["key", "value"].map(|name| (name, after.remove(name).expect("an output")));
        self.after.extend(after);
        for (name, loaded) in outputs.into_iter().filter(|_| is_load) {
            let (to, len) = (self.after.get_mut(name).expect("an output").bytes_mut(), loaded.bytes().len() / n);
            for (&row, from) in rows.iter().zip(loaded.bytes().chunks(len)) {
                to[row * len..][..len].copy_from_slice(from);
            }
        }
    }
}

fn rows_of(tensor: &Tensor, rows: &[usize]) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    let len = tensor.bytes().len().checked_div(shape[0]).unwrap_or(0);
    shape[0] = rows.len();
    let bytes: Vec<u8> = rows.iter().flat_map(|row| &tensor.bytes()[row * len..][..len]).copied().collect();
    Tensor::new(tensor.element(), shape, &bytes).expect("the rows' bytes")
}
