//! A difference is located: what the element that differs stands for is named right, in every layout.

use kvcache_conformance::{
    CacheLocation, Case, Demand, Elements, Inner, Location, Mismatch, OutputLocation, Owner, Part, Slot, Suite, Tensor,
    attention,
};
use kvcache_schema::{CacheLayout, CacheStrides, ElementType, StaticCacheLayout, StaticCacheStrides};

use crate::answers::{ATTENTION, DYNAMIC, STATIC, answers, integers, is_legal, last_outputs};

/// Changes the lowest bit of an element.
fn flip(tensor: &mut Tensor, index: usize) {
    match tensor.element() {
        ElementType::Int4 => tensor.bytes_mut()[index / 2] ^= 1 << (index % 2 * 4),
        element => tensor.bytes_mut()[index * element.align()] ^= 1,
    }
}

/// Some elements of a tensor.
fn some(tensor: &Tensor) -> impl Iterator<Item = usize> + use<> {
    let elements: usize = tensor.shape().iter().product();
    (0..elements).step_by((elements / 7).max(1))
}

/// What is said of a case whose last results are changed by one element; `None` if that passes.
fn of_one<C: Suite>(case: &C, change: impl Fn(&mut Vec<kvcache_conformance::CallResult>)) -> Option<Elements> {
    let mut results = answers(case);
    change(&mut results);
    let difference = case.difference(&results, Demand::AsExpected)?;
    let Mismatch::Elements(elements) = difference.mismatch else { panic!("elements differ: {difference}") };
    assert_eq!((difference.call, elements.differing), (Some(results.len() - 1), 1), "{}", case.name());
    Some(*elements)
}

/// Where some elements of the cache, and of the scale, of every legal case are said to lie, with their index.
fn in_state<C: Suite>(cases: &[C]) -> Vec<(&C, bool, usize, CacheLocation)> {
    let mut located = Vec::new();
    for case in cases.iter().filter(|case| is_legal(*case)) {
        for (is_scale, tensor) in [false, true].into_iter().zip(case.state()) {
            // A scale that is not used may have any shape.
            let of_heads = tensor.filter(|tensor| tensor.shape().len() >= 5);
            for index in of_heads.into_iter().flat_map(some) {
                let found = of_one(case, |results| {
                    let result = results.last_mut().expect("a case has calls");
                    flip(if is_scale { &mut result.scale } else { &mut result.cache }.as_mut().unwrap(), index);
                });
                let Some(Elements { tensor, index: at, location: Some(Location::Cache(location)), .. }) = found else {
                    panic!("{}: {found:?}", case.name())
                };
                assert_eq!((tensor, at), (["cache", "scale"][usize::from(is_scale)], index));
                located.push((case, is_scale, index, location));
            }
        }
    }
    located
}

/// The place within a head.
fn inner(location: &CacheLocation, is_scale: bool) -> usize {
    match location.inner {
        Inner::Element(element) if !is_scale => element,
        Inner::Group(group) if is_scale => group,
        other => panic!("{other:?}"),
    }
}

/// The slot of every token of the last call of a case, by the specification.
fn slots(case: &Case) -> Vec<(Owner, i64)> {
    let inputs = &case.steps.last().expect("a case has calls").inputs;
    let [kvstarts, cachestarts, start_pos] = [&inputs.kvstarts, &inputs.cachestarts, &inputs.start_pos].map(integers);
    let page_size = case.attributes.page_size;
    let of_sequence = |b: usize| {
        let (row, start_pos) = (cachestarts.len() / start_pos.len() * b, start_pos[b]);
        let slot = |t: i64| match case.attributes.cache_mode {
            0 => cachestarts[b] + t,
            _ => cachestarts[row + (t / page_size) as usize] + t % page_size,
        };
        let token = |t| (Owner { sequence: b, position: t as usize, current: t >= start_pos }, slot(t));
        (0..kvstarts[b + 1] - kvstarts[b]).map(token).collect::<Vec<_>>()
    };
    (0..start_pos.len()).flat_map(of_sequence).collect()
}

#[test]
fn an_element_of_the_cache_is_located_in_every_layout() {
    let mut located = [0; 4];
    let mut owned = [0; 2];
    for (case, is_scale, index, at) in in_state(&DYNAMIC) {
        let tensor = case.state()[usize::from(is_scale)].unwrap();
        let (Slot::Number(slot), &[a, b, c, d, e]) = (at.slot, tensor.shape()) else { panic!("{at:?}") };
        let layout = CacheLayout::from_code(case.attributes.cache_layout).unwrap();
        let dims = layout.dims([a, b, c, d, e]);
        let CacheStrides { token, layer, kv, head } = layout.strides(dims).unwrap();
        let offset = slot * token + at.layer * layer + usize::from(at.part == Part::Value) * kv + at.head * head;
        assert_eq!(offset + inner(&at, is_scale), index, "{}: {at:?}", case.name);
        // Strides alone do not tell places apart along axes of length 1.
        assert!(slot < dims.max_t && at.layer < dims.num_layer && at.head < dims.num_heads, "{}: {at:?}", case.name);
        let of_layer = at.layer as i64 == case.attributes.layer_idx;
        let has_slot = |(_, other): &(Owner, i64)| of_layer && *other == slot as i64;
        let expected: Vec<_> = slots(case).into_iter().filter(has_slot).map(|(owner, _)| owner).collect();
        assert_eq!(at.owners, expected, "{}: slot {slot}", case.name);
        owned[case.attributes.cache_mode as usize] += usize::from(!expected.is_empty());
        located[layout.code() as usize] += 1;
    }
    assert!(located.iter().chain(&owned).all(|&count| count > 50), "{located:?}, {owned:?}");
}

#[test]
fn an_element_of_the_cache_is_located_in_static_batching() {
    let (mut located, mut owned) = ([0; 2], 0);
    for (case, is_scale, index, at) in in_state(&STATIC) {
        let tensor = case.state()[usize::from(is_scale)].unwrap();
        let (Slot::Place { row, position }, &[a, b, c, d, e, f]) = (at.slot, tensor.shape()) else { panic!("{at:?}") };
        let layout = StaticCacheLayout::from_code(case.attributes.cache_layout).unwrap();
        let dims = layout.dims([a, b, c, d, e, f]);
        let StaticCacheStrides { slot, sequence } = layout.strides(dims).unwrap();
        let offset = slot.offset(row * sequence + position, at.layer, usize::from(at.part == Part::Value), at.head);
        assert_eq!(offset + inner(&at, is_scale), index, "{}: {at:?}", case.name);
        assert!(row < dims.max_b && position < dims.max_s && at.head < dims.num_heads, "{}: {at:?}", case.name);
        let inputs = &case.steps.last().unwrap().inputs;
        let (start_pos, shape) = (integers(&inputs.start_pos)[0] as usize, inputs.current_key.shape());
        let has_it = at.layer as i64 == case.attributes.layer_idx && row < shape[0] && position < start_pos + shape[1];
        let owner = Owner { sequence: row, position, current: position >= start_pos };
        assert_eq!(at.owners, has_it.then_some(owner).into_iter().collect::<Vec<_>>(), "{}: {at:?}", case.name);
        owned += at.owners.len();
        located[layout.code() as usize] += 1;
    }
    assert!(located.iter().all(|&count| count > 50) && owned > 50, "{located:?}, {owned}");
}

#[test]
fn an_element_of_an_output_is_located() {
    let mut repeated = 0;
    for case in DYNAMIC.iter().filter(|case| is_legal(*case)) {
        // The outputs hold the tokens in the order in which their slots are listed.
        let tokens = slots(case);
        let value = last_outputs(&mut answers(case))[1].clone();
        let &[_, heads, head_dim] = value.shape() else { panic!("an output has three axes") };
        for index in some(&value) {
            // Where any NaN will do, a changed bit of one is no difference.
            let Some(found) = of_one(case, |results| flip(&mut last_outputs(results)[1], index)) else { continue };
            let (Owner { sequence, position, .. }, _) = tokens[index / (heads * head_dim)];
            let (head, element) = (index / head_dim % heads, index % head_dim);
            let cache_head = head / case.attributes.num_repeat as usize;
            let location = OutputLocation { sequence, position, head, cache_head, element };
            assert_eq!((found.tensor, found.location), ("value", Some(Location::Output(location))), "{}", case.name);
            repeated += usize::from(cache_head != head);
        }
    }
    assert!(repeated > 10, "{repeated}");
}

/// The last element of the output, changed, is found to be that of the last query, which is its sequence's last token.
#[test]
fn an_element_of_attn_output_is_located() {
    let is_fit = |case: &&attention::Case| {
        let heads = &case.attributes.attention;
        let is_grouped = (1..heads.num_heads).contains(&heads.num_kv_heads);
        is_legal(*case) && case.t1 == ElementType::Float32 && case.steps.len() == 1 && is_grouped
    };
    for operator in attention::Operator::ALL {
        let case = ATTENTION.iter().filter(is_fit).find(|case| case.operator == operator).expect("such a case");
        let change = |results: &mut Vec<_>| {
            let bytes = last_outputs(results)[0].bytes_mut();
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&1e9f32.to_le_bytes());
        };
        let found = of_one(case, change).expect("a difference");
        assert!(found.tolerance.is_some() && found.ulps.is_some_and(|ulps| ulps > 1000));
        let (Some(Location::Output(at)), heads) = (found.location, &case.attributes.attention) else {
            panic!("it has a location")
        };
        let last = [heads.num_heads, heads.num_kv_heads, heads.head_dim].map(|count| count as usize - 1);
        assert_eq!([at.head, at.cache_head, at.element], last);
        let kvstarts = integers(case.steps[0].input("kvstarts"));
        assert_eq!(at.position as i64, kvstarts[at.sequence + 1] - kvstarts[at.sequence] - 1);
    }
}

#[test]
fn the_difference_of_the_cache_comes_before_those_that_it_causes() {
    let is_fit =
        |case: &&Case| is_legal(*case) && case.scale.is_none() && case.steps[0].inputs.current_key.bytes().len() > 16;
    let case = DYNAMIC.iter().find(is_fit).expect("such a case");
    let mut results = answers(case);
    results.truncate(1);
    let case = &Case { steps: case.steps[..1].to_vec(), ..case.clone() };
    flip(results[0].cache.as_mut().unwrap(), 1);
    flip(&mut last_outputs(&mut results)[0], 0);
    flip(&mut last_outputs(&mut results)[0], 1);
    let text = case.difference(&results, Demand::AsExpected).expect("a difference").to_string();
    assert!(text.starts_with("call 0: cache differs at element 1 [0, 0, 0, 0, 1]: got "), "{text}");
    assert!(text.contains("layer 0, key, slot 0, head 0, element 1"), "{text}");
    assert!(text.contains("elements differ, 2 of "), "{text}");
}

#[test]
fn the_state_after_a_refused_call_is_compared_with_the_one_before() {
    let mut int4 = 0;
    for case in DYNAMIC.iter().filter(|case| !is_legal(*case) && case.steps.len() == 1) {
        let mut results = answers(case);
        assert_eq!(case.difference(&results, Demand::Refusal), None);
        let Some(byte) = results[0].cache.as_mut().and_then(|cache| cache.bytes_mut().last_mut()) else { continue };
        *byte ^= 0x80;
        for demand in [Demand::AsExpected, Demand::Refusal] {
            let text = case.difference(&results, demand).expect("a difference").to_string();
            assert!(text.starts_with("call 0: cache of a refused call differs"), "{text}");
        }
        int4 += usize::from(case.cache.element() == ElementType::Int4);
    }
    assert!(int4 > 0);
}

#[test]
fn a_zero_of_the_other_sign_is_told_as_that() {
    let is_fit = |case: &&Case| {
        let begins_with_zero = || last_outputs(&mut answers(*case))[0].bytes().starts_with(&[0; 4]);
        is_legal(*case) && case.types.t1 == ElementType::Float32 && begins_with_zero()
    };
    let case = DYNAMIC.iter().find(is_fit).expect("an output that begins with zero");
    let mut results = answers(case);
    last_outputs(&mut results)[0].bytes_mut()[3] = 0x80;
    let text = case.difference(&results, Demand::AsExpected).expect("a difference").to_string();
    assert!(text.contains("got -0.0 (0x80000000), expected 0.0 (0x00000000), the sign of zero;"), "{text}");
}
