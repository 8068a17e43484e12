//! The oracle of calls of `KeyValueCache` on a device with any index inputs, legal or not: the reference kernel on the
//! tokens that have a slot.

use std::cmp::Ordering;

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
    let [current_rows, num_heads, head_dim] = call.inputs["current_key"].shape().try_into().expect("rank 3");
    let all_rows = call.inputs["kvstarts"].indices().last().copied().expect("at least the total") as usize;
    let shape = [all_rows, num_heads * attributes.num_repeat as usize, head_dim];
    let state = [("cache", &call.cache), ("scale", &call.scale)].into_iter();
    let state = state.filter_map(|(name, tensor)| Some((name, tensor.clone()?)));
    let mut after: Tensors = state.chain(["key", "value"].map(|name| (name, untouched(call.t1(), &shape)))).collect();

    let [seqstarts, start_pos] = ["seqstarts", "start_pos"].map(|name| call.inputs[name].indices());
    let batch = start_pos.len();
    let status = |finding, b: usize, token: i128| {
        let token = token.min(i128::from(u32::MAX)) as u32;
        Status { finding, batch: b as u32, token }
    };
    // What has no rows, or rows without elements, is not launched.
    let mut is_launched = [current_rows, all_rows].map(|rows| rows * num_heads * head_dim > 0);
    let wrong_length = |b: usize| {
        let (start, end) = (seqstarts[b], seqstarts[b + 1]);
        match start < 0 || end < start || (b == 0 && start != 0) {
            true => Some(status(Finding::Seqstarts, b, 0)),
            false => (start_pos[b] < 0).then(|| status(Finding::StartPos, b, 0)),
        }
    };
    let mut findings: Vec<_> = (0..batch).filter_map(wrong_length).collect();
    if is_launched == [false; 2] {
        return (after, Vec::new());
    }
    if !findings.is_empty() || batch == 0 {
        return (after, findings);
    }
    let past = |b: usize| i128::from(start_pos[b]);
    let seqlen = |b: usize| i128::from(seqstarts[b + 1] - seqstarts[b]);
    let current: i128 = (0..batch).map(seqlen).sum();
    let totals = [current, current + (0..batch).map(past).sum::<i128>()];
    for ((total, rows), is_launched) in totals.into_iter().zip([current_rows, all_rows]).zip(&mut is_launched) {
        match total.cmp(&(rows as i128)) {
            Ordering::Greater if *is_launched => findings.push(status(Finding::TooManyTokens, batch, 0)),
            Ordering::Less if *is_launched => findings.push(status(Finding::TooFewTokens, batch, 0)),
            _ => continue,
        }
        *is_launched = total < rows as i128;
    }

    // The call without the tokens that have no slot: each other token's slot is a page.
    let [stores, loads] = is_launched;
    let (mut sequences, mut pages, mut rows, mut stored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut row = 0;
    for b in 0..batch {
        let mut lens = (0, 0);
        pages.push(Vec::new());
        // Without the load there may be any number of past tokens.
        for token in if loads { 0 } else { past(b) }..past(b) + if stores || loads { seqlen(b) } else { 0 } {
            match slot(&attributes, call, b, token) {
                Err(finding) => findings.push(status(finding, b, token)),
                Ok(slot) => {
                    pages[b].push(slot);
                    rows.push(row);
                    if stores && token >= past(b) {
                        stored.push((i128::from(seqstarts[b]) + token - past(b)) as usize);
                        lens.1 += 1;
                    } else {
                        lens.0 += 1;
                    }
                }
            }
            row += 1;
        }
        sequences.push(lens);
    }
    let max_p = pages.iter().map(Vec::len).max().unwrap_or(0);
    pages.iter_mut().for_each(|pages| pages.resize(max_p, -1));
    let mut inputs = index_inputs(&sequences);
    inputs.insert("cachestarts", Tensor::of_indices(&pages.concat(), &[batch, max_p]));
    inputs.extend(["current_key", "current_value"].map(|name| (name, rows_of(&call.inputs[name], &stored))));
    let mut attributes = call.attributes.clone();
    attributes.extend([("cache_mode", CacheMode::Paged.code()), ("page_size", 1)]);
    let kept = case(Call { inputs, attributes, ..call.clone() }).steps.remove(0).expected;
    let Expected::Success(kept) = kept else { panic!("legal tokens") };
    for (name, tensor) in kept {
        let to = after.get_mut(name).expect("a tensor of the call");
        if !["key", "value"].contains(&name) {
            *to = tensor;
        } else if loads && !rows.is_empty() {
            let len = tensor.bytes().len() / rows.len();
            for (&row, from) in rows.iter().zip(tensor.bytes().chunks(len)) {
                to.bytes_mut()[row * len..][..len].copy_from_slice(from);
            }
        }
    }
    (after, findings)
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

fn rows_of(tensor: &Tensor, rows: &[usize]) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    let len = tensor.bytes().len().checked_div(shape[0]).unwrap_or(0);
    shape[0] = rows.len();
    let bytes: Vec<u8> = rows.iter().flat_map(|row| &tensor.bytes()[row * len..][..len]).copied().collect();
    Tensor::new(tensor.element(), shape, &bytes).expect("the rows' bytes")
}
