//! A difference is located: what the element that differs stands for is named right, in every layout.

use kvcache_conformance::{
    CacheLocation, Case, Demand, Elements, Inner, Location, Mismatch, OutputLocation, Owner, Part, Slot, Suite, Tensor,
    Value,
};
use kvcache_schema::{CacheLayout, CacheStrides, ElementType};

use crate::answers::{DYNAMIC, answers, integers, is_legal, last_outputs};

/// Changes the lowest bit of an element.
fn flip(tensor: &mut Tensor, index: usize) {
    match tensor.element() {
        ElementType::Int4 => tensor.bytes_mut()[index / 2] ^= 1 << (index % 2 * 4),
        element => tensor.bytes_mut()[index * element.align()] ^= 1,
    }
}

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

#[test]
fn a_value_is_shown_as_number_and_bits() {
    let shown = |element, bits| Value { element, bits }.to_string();
    assert_eq!(shown(ElementType::Float16, 0x3e00), "1.5 (0x3e00)");
    assert_eq!(shown(ElementType::Float32, 0xff80_0000), "-inf (0xff800000)");
    assert_eq!(shown(ElementType::Int4, 0x9), "-7 (0x9)");
    let ulps = |one: u16, other: u16| {
        let value = |bits: u16| Value { element: ElementType::Float16, bits: bits.into() };
        value(one).ulps(value(other))
    };
    assert_eq!(
        [ulps(0x3c00, 0x3c02), ulps(0, 0x8000), ulps(1, 0x8001), ulps(0x7e00, 0)],
        [Some(2), Some(0), Some(2), None]
    );
}
