//! A difference is located: what the element that differs stands for is named right, in every layout.

use kvcache_conformance::attention::Step;
use kvcache_conformance::{
    CacheLocation, CallResult, Case, Demand, Difference, Elements, Expected, Inner, Location, Mismatch, Outcome,
    OutputLocation, Owner, Part, Slot, Suite, Tensor, attention, cases, static_batching,
};
use kvcache_schema::{
    Axis, CacheLayout, CacheMode, CacheStrides, ElementType, StaticAxis, StaticCacheLayout, StaticCacheStrides,
};

/// The expected results of a case whose calls all succeed; `None` if one is refused.
fn answers<A, I>(case: &Case<A, I>) -> Option<Vec<CallResult>> {
    let answer = |step: &kvcache_conformance::Step<I>| match &step.expected {
        Expected::Success(after) => Some(CallResult {
            outcome: Outcome::Done(after.outputs.clone()),
            cache: after.cache.clone(),
            scale: after.scale.clone(),
        }),
        Expected::Refusal { .. } => None,
    };
    case.steps.iter().map(answer).collect()
}

/// Changes the lowest bit of an element.
fn flip(tensor: &mut Tensor, index: usize) {
    match tensor.element() {
        ElementType::Int4 => tensor.bytes_mut()[index / 2] ^= 1 << (index % 2 * 4),
        element => tensor.bytes_mut()[index * element.align()] ^= 1,
    }
}

fn elements(difference: Option<Difference>) -> Elements {
    match difference {
        Some(Difference { mismatch: Mismatch::Elements(elements), .. }) => *elements,
        other => panic!("elements differ: {other:?}"),
    }
}

fn cache_location(elements: &Elements) -> &CacheLocation {
    match &elements.location {
        Some(Location::Cache(location)) => location,
        other => panic!("an element of the cache: {other:?}"),
    }
}

fn output_location(elements: &Elements) -> OutputLocation {
    match elements.location {
        Some(Location::Output(location)) => location,
        ref other => panic!("an element of an output: {other:?}"),
    }
}

fn kv(part: Part) -> usize {
    usize::from(part == Part::Value)
}

fn inner(inner: Inner, is_scale: bool) -> usize {
    match inner {
        Inner::Element(element) if !is_scale => element,
        Inner::Group(group) if is_scale => group,
        other => panic!("{other:?}"),
    }
}

/// Element indices over a tensor, about `count` of them.
fn some(tensor: &Tensor, count: usize) -> impl Iterator<Item = usize> + use<> {
    let elements: usize = tensor.shape().iter().product();
    (0..elements).step_by((elements / count).max(1))
}

/// The slot of every token of a call, by the specification.
fn slots(case: &Case, call: usize) -> Vec<(Owner, usize)> {
    let inputs = &case.steps[call].inputs;
    let integers = |tensor: &Tensor| -> Vec<i64> {
        tensor.bytes().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let [kvstarts, cachestarts, start_pos] = [&inputs.kvstarts, &inputs.cachestarts, &inputs.start_pos].map(integers);
    let page_size = case.attributes.page_size;
    let mut slots = Vec::new();
    for b in 0..kvstarts.len().saturating_sub(1) {
        for t in 0..kvstarts[b + 1] - kvstarts[b] {
            let slot = match CacheMode::from_code(case.attributes.cache_mode).unwrap() {
                CacheMode::Offset => cachestarts[b] + t,
                CacheMode::Paged => {
                    let row = b * inputs.cachestarts.shape()[1];
                    cachestarts[row + (t / page_size) as usize] + t % page_size
                }
            };
            let owner = Owner { sequence: b, position: t as usize, current: t >= start_pos[b] };
            slots.push((owner, slot as usize));
        }
    }
    slots
}

#[test]
fn an_element_of_the_cache_is_located_in_every_layout() {
    let mut located = [0; 4];
    let mut owned = [0; 2];
    for case in cases().unwrap() {
        let Some(results) = answers(&case) else { continue };
        let layout = CacheLayout::from_code(case.attributes.cache_layout).unwrap();
        let call = results.len() - 1;
        let slots = slots(&case, call);
        for is_scale in [false, true] {
            let mut results = results.clone();
            let of_call = |results: &mut Vec<CallResult>, index| match (is_scale, &mut results[call]) {
                (false, result) => flip(&mut result.cache, index),
                (true, CallResult { scale: Some(scale), .. }) => flip(scale, index),
                (true, _) => unreachable!("the case has a scale"),
            };
            let tensor = if is_scale { case.scale.clone() } else { Some(case.cache.clone()) };
            let Some((tensor, shape)) = tensor.and_then(|tensor| {
                let shape: [usize; 5] = tensor.shape().try_into().ok()?;
                Some((tensor, shape))
            }) else {
                continue;
            };
            let CacheStrides { token, layer, kv: kv_stride, head } = layout.strides(layout.dims(shape)).unwrap();
            for index in some(&tensor, 7) {
                of_call(&mut results, index);
                let found = elements(case.difference(&results, Demand::AsExpected));
                of_call(&mut results, index);
                assert_eq!(found.tensor, if is_scale { "scale" } else { "cache" });
                assert_eq!((found.index, found.differing), (index, 1), "{}", case.name);
                assert!(found.also.is_empty() && found.ulps.is_none_or(|ulps| ulps == 1));
                let at = cache_location(&found);
                let Slot::Number(slot) = at.slot else { panic!("{at:?}") };
                let offset = slot * token + at.layer * layer + kv(at.part) * kv_stride + at.head * head;
                assert_eq!(offset + inner(at.inner, is_scale), index, "{}: {at:?}", case.name);
                // Strides alone do not tell places apart along axes of length 1.
                for (axis, place) in
                    [(Axis::Token, slot), (Axis::Layer, at.layer), (Axis::Kv, kv(at.part)), (Axis::Head, at.head)]
                {
                    assert!(place < layout.dims(shape).len(axis), "{}: {at:?}", case.name);
                }
                let own_layer = at.layer as i64 == case.attributes.layer_idx;
                let expected: Vec<_> =
                    slots.iter().filter(|(_, other)| own_layer && *other == slot).map(|(owner, _)| *owner).collect();
                assert_eq!(at.owners, expected, "{}: slot {slot}", case.name);
                owned[case.attributes.cache_mode as usize] += usize::from(!expected.is_empty());
                located[layout.code() as usize] += 1;
            }
        }
    }
    assert!(located.iter().all(|&count| count > 50), "{located:?}");
    assert!(owned.iter().all(|&count| count > 50), "{owned:?}");
}

#[test]
fn an_element_of_the_cache_is_located_in_static_batching() {
    let mut located = [0; 2];
    let mut owned = 0;
    for case in static_batching::cases().unwrap() {
        let Some(mut results) = answers(&case) else { continue };
        let layout = StaticCacheLayout::from_code(case.attributes.cache_layout).unwrap();
        let last = results.len() - 1;
        let shape: [usize; 6] = case.cache.shape().try_into().unwrap();
        let StaticCacheStrides { slot, sequence } = layout.strides(layout.dims(shape)).unwrap();
        let inputs = &case.steps[last].inputs;
        let start_pos = i64::from_le_bytes(inputs.start_pos.bytes().try_into().unwrap()) as usize;
        let &[batch, seqlen, ..] = inputs.current_key.shape() else { panic!("current_key has four axes") };
        for index in some(&case.cache, 7) {
            flip(&mut results[last].cache, index);
            let found = elements(case.difference(&results, Demand::AsExpected));
            flip(&mut results[last].cache, index);
            let at = cache_location(&found);
            let Slot::Place { row, position } = at.slot else { panic!("{at:?}") };
            let offset = slot.offset(row * sequence + position, at.layer, kv(at.part), at.head);
            assert_eq!(offset + inner(at.inner, false), index, "{}: {at:?}", case.name);
            assert!(row < layout.dims(shape).len(StaticAxis::Batch), "{}: {at:?}", case.name);
            assert!(position < layout.dims(shape).len(StaticAxis::Position), "{}: {at:?}", case.name);
            let own_layer = at.layer as i64 == case.attributes.layer_idx;
            let expected = (own_layer && row < batch && position < start_pos + seqlen).then_some(Owner {
                sequence: row,
                position,
                current: position >= start_pos,
            });
            assert_eq!(at.owners, expected.into_iter().collect::<Vec<_>>(), "{}: {at:?}", case.name);
            owned += at.owners.len();
            located[layout.code() as usize] += 1;
        }
    }
    assert!(located.iter().all(|&count| count > 50) && owned > 50, "{located:?}, {owned}");
}

#[test]
fn an_element_of_an_output_is_located() {
    let mut repeated = 0;
    for case in cases().unwrap() {
        let Some(mut results) = answers(&case) else { continue };
        let last = results.len() - 1;
        let of_kind = |owner: Owner| (owner.sequence, owner.position);
        // The outputs hold the tokens in the order in which their slots are listed.
        let tokens: Vec<_> = slots(&case, last).into_iter().map(|(owner, _)| of_kind(owner)).collect();
        let Expected::Success(after) = &case.steps[last].expected else { unreachable!("no call is refused") };
        let &[_, heads, head_dim] = after.outputs.value.shape() else { panic!("an output has three axes") };
        let flip_value = |results: &mut Vec<CallResult>, index| match &mut results[last].outcome {
            Outcome::Done(outputs) => flip(&mut outputs.value, index),
            Outcome::Refused { .. } => unreachable!("no call is refused"),
        };
        for index in some(&after.outputs.value, 5) {
            flip_value(&mut results, index);
            let difference = case.difference(&results, Demand::AsExpected);
            flip_value(&mut results, index);
            // Where any NaN will do, a changed bit of one is no difference.
            let Some(difference) = difference else { continue };
            assert_eq!(difference.call, Some(last));
            let found = elements(Some(difference));
            assert_eq!((found.tensor, found.index), ("value", index));
            let at = output_location(&found);
            let (sequence, position) = tokens[index / (heads * head_dim)];
            let (head, element) = (index / head_dim % heads, index % head_dim);
            let cache_head = head / case.attributes.num_repeat as usize;
            assert_eq!(at, OutputLocation { sequence, position, head, cache_head, element }, "{}", case.name);
            repeated += usize::from(cache_head != head);
        }
    }
    assert!(repeated > 10, "{repeated}");
}

#[test]
fn an_element_of_attn_output_is_located() {
    let is_fit = |case: &attention::Case| {
        let heads = &case.attributes.attention;
        let [Step { expected: Expected::Success(after), .. }] = &case.steps[..] else { return false };
        case.t1 == ElementType::Float32
            && (1..heads.num_heads).contains(&heads.num_kv_heads)
            && after.attn_output.bytes().len() > 4
    };
    let cases: Vec<_> = attention::cases().unwrap().into_iter().filter(is_fit).collect();
    for operator in attention::Operator::ALL {
        let case = cases.iter().find(|case| case.operator == operator);
        the_last_output_is_located(case.expect("a case of grouped-query attention"));
    }
}

/// The last element of the only call's output, changed, is found to be that of the last query.
fn the_last_output_is_located(case: &attention::Case) {
    let mut results: Vec<_> = Vec::new();
    for step in &case.steps {
        let Expected::Success(after) = &step.expected else { panic!("no call is refused") };
        results.push(attention::CallResult {
            outcome: Outcome::Done(after.attn_output.clone()),
            cache: after.cache.clone(),
            scale: after.scale.clone(),
        });
    }
    let result = &mut results[0];
    let Outcome::Done(output) = &mut result.outcome else { unreachable!("it is done") };
    let index = output.shape().iter().product::<usize>() - 1;
    let bytes = output.bytes_mut();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&1e9f32.to_le_bytes());
    let found = elements(case.difference(&results, Demand::AsExpected));
    assert_eq!((found.tensor, found.index, found.differing), ("attn_output", index, 1));
    assert!(found.tolerance.is_some() && found.ulps.is_some_and(|ulps| ulps > 1000));
    let at = output_location(&found);
    let attributes = &case.attributes.attention;
    assert_eq!(at.head as i64, attributes.num_heads - 1);
    assert_eq!(at.cache_head as i64, attributes.num_kv_heads - 1);
    assert_eq!(at.element as i64, attributes.head_dim - 1);
    // The last query is the last token of the last sequence that has any.
    let kvstarts: Vec<i64> = case.steps[0]
        .input("kvstarts")
        .bytes()
        .chunks_exact(8)
        .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(at.position as i64, kvstarts[at.sequence + 1] - kvstarts[at.sequence] - 1);
}

#[test]
fn the_difference_of_the_cache_comes_before_those_that_it_causes() {
    let case = cases().unwrap().into_iter().find(|case| {
        answers(case).is_some_and(|results| {
            case.scale.is_none()
                && matches!(&results[0].outcome, Outcome::Done(outputs) if outputs.key.bytes().len() > 16)
        })
    });
    let case = case.expect("such a case");
    let mut results = answers(&case).unwrap();
    flip(&mut results[0].cache, 1);
    let Outcome::Done(outputs) = &mut results[0].outcome else { unreachable!("it is done") };
    flip(&mut outputs.key, 0);
    flip(&mut outputs.key, 1);
    let difference = case.difference(&results, Demand::AsExpected).expect("a difference");
    let found = elements(Some(difference.clone()));
    assert_eq!((found.tensor, found.index, found.differing), ("cache", 1, 1));
    let also: Vec<_> = found.also.iter().map(|also| (also.tensor, also.differing)).collect();
    assert_eq!(also, [("key", 2)]);
    let text = difference.to_string();
    assert!(text.starts_with("call 0: cache differs at element 1 [0, 0, 0, 0, 1]: got "), "{text}");
    assert!(text.contains("layer 0, key, slot 0, head 0, element 1"), "{text}");
}

#[test]
fn the_state_after_a_refused_call_is_compared_with_the_one_before() {
    let mut int4 = 0;
    for case in cases().unwrap() {
        let refused = |step: &kvcache_conformance::Step| matches!(step.expected, Expected::Refusal { .. });
        if !case.steps.iter().all(refused) || case.cache.bytes().is_empty() {
            continue;
        }
        let result = |step: &kvcache_conformance::Step| {
            let Expected::Refusal { kind, mentions } = &step.expected else { unreachable!("every call is refused") };
            let outcome = Outcome::Refused { kind: Some(kind.clone()), message: mentions.join(" ") };
            CallResult { outcome, cache: case.cache.clone(), scale: case.scale.clone() }
        };
        let mut results: Vec<_> = case.steps.iter().map(result).collect();
        assert_eq!(case.difference(&results, Demand::AsExpected), None);
        assert_eq!(case.difference(&results, Demand::Refusal), None);
        let last = case.cache.bytes().len() - 1;
        results[0].cache.bytes_mut()[last] ^= 0x80;
        for demand in [Demand::AsExpected, Demand::Refusal] {
            let found = elements(case.difference(&results, demand));
            assert!(found.refused && found.tensor == "cache", "{}", case.name);
        }
        int4 += usize::from(case.cache.element() == ElementType::Int4);
        // Any refusal satisfies the demand for one.
        results[0] = CallResult { outcome: Outcome::refused("no"), ..result(&case.steps[0]) };
        assert_eq!(case.difference(&results, Demand::Refusal), None);
    }
    assert!(int4 > 0);
}

#[test]
fn a_zero_of_the_other_sign_is_told_as_that() {
    let is_zero = |case: &Case| {
        case.types.t1 == ElementType::Float32
            && answers(case).is_some_and(|results| match &results[0].outcome {
                Outcome::Done(outputs) => outputs.key.bytes().starts_with(&[0; 4]),
                Outcome::Refused { .. } => false,
            })
    };
    let case = cases().unwrap().into_iter().find(is_zero).expect("an output that begins with zero");
    let mut results = answers(&case).unwrap();
    let Outcome::Done(outputs) = &mut results[0].outcome else { unreachable!("it is done") };
    outputs.key.bytes_mut()[3] = 0x80;
    let text = case.difference(&results, Demand::AsExpected).expect("a difference").to_string();
    assert!(text.contains("got -0.0 (0x80000000), expected 0.0 (0x00000000), the sign of zero;"), "{text}");
}
