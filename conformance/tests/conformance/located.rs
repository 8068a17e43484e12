//! A difference is located: what the element that differs stands for is named right, in every layout.

use kvcache_conformance::{CallResult, Case, Difference, Suite, Tensor, Value};
use kvcache_schema::{CacheLayout, CacheStrides, ElementType};
use serde_json::{Value as Json, json};

use crate::answers::{answers, last_outputs, of_suite};

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
fn of_one(case: &Case, change: impl Fn(&mut Vec<CallResult>)) -> Option<Difference> {
    let mut results = answers(case);
    change(&mut results);
    let difference = case.difference(&results)?;
    assert_eq!((difference.kind, difference.call), ("elements", Some(results.len() - 1)), "{}", case.name);
    assert_eq!(difference.details["differing"], 1, "{}", case.name);
    Some(difference)
}

fn legal() -> impl Iterator<Item = &'static Case> {
    of_suite(Suite::KeyValueCache).filter(|case| case.is_legal())
}

/// The slot of every token of the last call of a case, by the specification.
fn slots(case: &Case) -> Vec<(Json, i64)> {
    let inputs = &case.steps.last().expect("a case has calls").inputs;
    let [kvstarts, cachestarts, start_pos] =
        ["kvstarts", "cachestarts", "start_pos"].map(|name| inputs[name].indices());
    let page_size = case.attributes["page_size"];
    let of_sequence = |b: usize| {
        let (row, start_pos) = (cachestarts.len() / start_pos.len() * b, start_pos[b]);
        let slot = |t: i64| match case.attributes["cache_mode"] {
            0 => cachestarts[b] + t,
            _ => cachestarts[row + (t / page_size) as usize] + t % page_size,
        };
        let token = |t| (json!({"sequence": b, "position": t, "current": t >= start_pos}), slot(t));
        (0..kvstarts[b + 1] - kvstarts[b]).map(token).collect::<Vec<_>>()
    };
    (0..start_pos.len()).flat_map(of_sequence).collect()
}

fn number(location: &Json, name: &str) -> usize {
    location[name].as_u64().unwrap_or_else(|| panic!("{location} has no {name}")) as usize
}

#[test]
fn an_element_of_the_cache_is_located_in_every_layout() {
    let (mut located, mut owned) = ([0; 4], [0; 2]);
    // Where any NaN will do, the bits of one are not compared.
    for case in legal().filter(|case| !case.any_nan) {
        for (name, tensor, inner) in [("cache", &case.cache, "element"), ("scale", &case.scale, "group")] {
            // A scale that is not used may have any shape, static scales have no slots.
            let Some(tensor) = tensor.as_ref().filter(|tensor| tensor.shape().len() == 5) else { continue };
            let &[a, b, c, d, e] = tensor.shape() else { unreachable!("five axes") };
            let layout = CacheLayout::from_code(case.attributes["cache_layout"]).unwrap();
            let dims = layout.dims([a, b, c, d, e]);
            let CacheStrides { token, layer, kv, head } = layout.strides(dims).unwrap();
            for index in some(tensor) {
                let found = of_one(case, |results| {
                    let result = results.last_mut().expect("a case has calls");
                    flip(if name == "scale" { &mut result.scale } else { &mut result.cache }.as_mut().unwrap(), index);
                });
                let found = found.unwrap_or_else(|| panic!("{}: {name} is not compared", case.name));
                let at = &found.details["location"];
                assert_eq!((&found.details["tensor"], &found.details["index"]), (&name.into(), &index.into()));
                let [slot, of_layer, of_head] = ["slot", "layer", "head"].map(|name| number(at, name));
                let offset = slot * token + of_layer * layer + usize::from(at["part"] == "value") * kv + of_head * head;
                assert_eq!(offset + number(at, inner), index, "{}: {at}", case.name);
                // Strides alone do not tell places apart along axes of length 1.
                let is_inside = slot < dims.max_t && of_layer < dims.num_layer && of_head < dims.num_heads;
                assert!(is_inside, "{}: {at}", case.name);
                let is_own = of_layer as i64 == case.attributes["layer_idx"];
                let has_slot = |(_, other): &(Json, i64)| is_own && *other == slot as i64;
                let expected: Vec<_> = slots(case).into_iter().filter(has_slot).map(|(owner, _)| owner).collect();
                assert_eq!(at["owners"], json!(expected), "{}: slot {slot}", case.name);
                owned[case.attributes["cache_mode"] as usize] += usize::from(!expected.is_empty());
                located[layout.code() as usize] += 1;
            }
        }
    }
    assert!(located.iter().chain(&owned).all(|&count| count > 50), "{located:?}, {owned:?}");
}

#[test]
fn an_element_of_an_output_is_located() {
    let mut repeated = 0;
    for case in legal() {
        // The outputs hold the tokens in the order in which their slots are listed.
        let tokens = slots(case);
        let value = last_outputs(&mut answers(case))[1].clone();
        let &[_, heads, head_dim] = value.shape() else { panic!("an output has three axes") };
        for index in some(&value) {
            // Where any NaN will do, a changed bit of one is no difference.
            let Some(found) = of_one(case, |results| flip(&mut last_outputs(results)[1], index)) else { continue };
            let (owner, _) = &tokens[index / (heads * head_dim)];
            let (head, element) = (index / head_dim % heads, index % head_dim);
            let cache_head = head / case.attributes["num_repeat"] as usize;
            let expected = json!({
                "sequence": owner["sequence"], "position": owner["position"], "head": head, "cache_head": cache_head,
                "element": element,
            });
            assert_eq!((&found.details["tensor"], &found.details["location"]), (&"value".into(), &expected));
            repeated += usize::from(cache_head != head);
        }
    }
    assert!(repeated > 10, "{repeated}");
}

#[test]
fn a_zero_of_the_other_sign_is_told_as_that() {
    let is_fit = |case: &&Case| {
        let begins_with_zero = || last_outputs(&mut answers(case))[0].bytes().starts_with(&[0; 4]);
        case.t1() == ElementType::Float32 && begins_with_zero()
    };
    let case = legal().find(is_fit).expect("an output that begins with zero");
    let mut results = answers(case);
    last_outputs(&mut results)[0].bytes_mut()[3] = 0x80;
    let text = case.difference(&results).expect("a difference").to_string();
    assert!(text.contains("got -0.0 (0x80000000), expected 0.0 (0x00000000), the sign of zero;"), "{text}");
}

#[test]
fn a_value_is_shown_as_number_and_bits() {
    let shown = |element, bits| Value { element, bits }.to_string();
    assert_eq!(shown(ElementType::Float16, 0x3e00), "1.5 (0x3e00)");
    assert_eq!(shown(ElementType::Float32, 0xff80_0000), "-inf (0xff800000)");
    assert_eq!(shown(ElementType::Float8E4M3Fn, 0xfe), "-448 (0xfe)");
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
