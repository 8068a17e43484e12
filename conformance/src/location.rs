//! What an element of a tensor stands for, as text and as JSON. The call may be one that must be refused, so indices
//! and shapes may be anything.

use kvcache_schema::{Axis, CacheLayout, CacheMode, StaticAxis, StaticCacheLayout};
use serde_json::{Value as Json, json};

use crate::case::{Case, Operator, Suite};
use crate::tensor::Tensor;

/// What the element of an expected tensor of call `call` stands for, if that can be told.
pub(crate) fn locate(case: &Case, call: usize, name: &str, tensor: &Tensor, index: usize) -> Option<(String, Json)> {
    let place = coordinates(tensor.shape(), index);
    match name {
        "cache" | "scale" => in_state(case, call, name == "scale", &place),
        "key" | "value" | "attn_output" => in_output(case, call, &place),
        _ => None, // the coordinates say it
    }
}

/// The index along each axis of a row-major tensor; empty, if there is no such element.
pub(crate) fn coordinates(shape: &[usize], index: usize) -> Vec<usize> {
    let mut rest = index;
    let mut coordinates: Vec<_> = shape
        .iter()
        .rev()
        .map_while(|&length| {
            let coordinate = rest.checked_rem(length)?;
            rest /= length;
            Some(coordinate)
        })
        .collect();
    coordinates.reverse();
    if rest == 0 && coordinates.len() == shape.len() { coordinates } else { Vec::new() }
}

/// The place of an element of `cache`, or of a scale, and the tokens of the call that have its slot: several where
/// sequences share it.
fn in_state(case: &Case, call: usize, is_scale: bool, place: &[usize]) -> Option<(String, Json)> {
    let (&inner, outer) = place.split_last()?;
    let code = case.attributes["cache_layout"];
    let axes: Vec<&str> = match case.operator {
        Operator::StaticKeyValueCache => StaticCacheLayout::from_code(code)?.axes().map(static_axis).into(),
        _ => CacheLayout::from_code(code)?.axes().map(axis).into(),
    };
    let along = |name: &str| axes.iter().position(|axis| *axis == name).map(|axis| outer[axis]);
    if axes.len() != outer.len() {
        return None; // static scales, or a shape that is refused
    }
    let (layer, head, part) = (along("layer")?, along("head")?, ["key", "value"].get(along("kv")?)?);
    // The tokens of a call have slots in its own layer alone.
    let is_own = i64::try_from(layer) == Ok(case.attributes["layer_idx"]);
    let (slot_text, slot, owners) = match along("slot") {
        Some(slot) => (format!("slot {slot}"), json!(slot), if is_own { owners(case, call, slot) } else { Vec::new() }),
        None => {
            let (row, position) = (along("row")?, along("position")?);
            let owner = if is_own { static_owner(case, call, row, position) } else { None };
            let text = format!("row {row}, position {position}");
            (text, json!({"row": row, "position": position}), owner.into_iter().collect())
        }
    };
    let owned = match &owners[..] {
        [] => "the slot of no token of the call".to_owned(),
        [first] => format!("the slot of {first}"),
        [first, rest @ ..] => format!("the slot of {first}, and of {} more", rest.len()),
    };
    let inner_name = if is_scale { "group" } else { "element" };
    let text = format!("layer {layer}, {part}, {slot_text}, head {head}, {inner_name} {inner} ({owned})");
    let owners: Vec<_> = owners.iter().map(Owner::json).collect();
    let fields = json!({
        "layer": layer, "part": part, "slot": slot, "head": head, inner_name: inner, "owners": owners,
    });
    Some((text, fields))
}

fn axis(axis: Axis) -> &'static str {
    match axis {
        Axis::Token => "slot",
        Axis::Layer => "layer",
        Axis::Kv => "kv",
        Axis::Head => "head",
    }
}

fn static_axis(axis: StaticAxis) -> &'static str {
    match axis {
        StaticAxis::Batch => "row",
        StaticAxis::Position => "position",
        StaticAxis::Layer => "layer",
        StaticAxis::Kv => "kv",
        StaticAxis::Head => "head",
    }
}

/// The token and the element of an output; a head of the outputs is one of a head of the cache (of
/// `MultiHeadAttention`: of the key).
fn in_output(case: &Case, call: usize, place: &[usize]) -> Option<(String, Json)> {
    let [outer @ .., head, element] = place else { return None };
    let inputs = &case.steps[call].inputs;
    let starts = |name: &str| inputs.get(name).map(Tensor::indices);
    let attribute = |name: &str| case.attributes[name];
    let (repeat, (sequence, position)) = match (case.operator.suite(), outer) {
        (Suite::KeyValueCache, &[row]) => (attribute("num_repeat"), of_token(&starts("kvstarts")?, row)?),
        (Suite::Static, &[sequence, position]) => (attribute("num_repeat"), (sequence, position)),
        (Suite::Attention, &[row]) => {
            let repeat = match attribute("num_kv_heads") {
                0 => 1,
                num_kv_heads => attribute("num_heads").checked_div(num_kv_heads)?,
            };
            // The queries are the last tokens of their sequence.
            let (seqstarts, kvstarts) = (starts("seqstarts")?, starts("kvstarts")?);
            let (sequence, query) = of_token(&seqstarts, row)?;
            let length = |starts: &[i64]| starts.get(sequence + 1)?.checked_sub(*starts.get(sequence)?);
            let past = length(&kvstarts)?.checked_sub(length(&seqstarts)?)?;
            (repeat, (sequence, usize::try_from(past).ok()?.checked_add(query)?))
        }
        _ => return None,
    };
    let cache_head = head.checked_div(usize::try_from(repeat).ok()?)?;
    let text = format!(
        "sequence {sequence}, position {position}, head {head} (of cache head {cache_head}), element {element}"
    );
    let fields = json!({
        "sequence": sequence, "position": position, "head": head, "cache_head": cache_head, "element": element,
    });
    Some((text, fields))
}

/// The sequence of a row of a packed tensor, and which of the sequence's rows it is.
fn of_token(starts: &[i64], row: usize) -> Option<(usize, usize)> {
    let row = i64::try_from(row).ok()?;
    let sequence = starts.windows(2).position(|pair| (pair[0]..pair[1]).contains(&row))?;
    Some((sequence, usize::try_from(row.checked_sub(starts[sequence])?).ok()?))
}

/// A token that has a slot: its sequence in the batch, its position there, and whether the call stores it.
struct Owner {
    sequence: usize,
    position: usize,
    current: bool,
}

impl Owner {
    fn json(&self) -> Json {
        json!({"sequence": self.sequence, "position": self.position, "current": self.current})
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sequence, position, current } = self;
        write!(f, "sequence {sequence}, position {position}, {}", if *current { "current" } else { "past" })
    }
}

/// The tokens that have `slot`, by sequence.
fn owners(case: &Case, call: usize, slot: usize) -> Vec<Owner> {
    let inputs = &case.steps[call].inputs;
    let [seqstarts, kvstarts, cachestarts] =
        ["seqstarts", "kvstarts", "cachestarts"].map(|name| inputs[name].indices());
    // Pages of a sequence, as long as its tokens go; without pages there is a single one.
    let (columns, page_size) = match CacheMode::from_code(case.attributes["cache_mode"]) {
        Some(CacheMode::Offset) => (1, i64::MAX),
        Some(CacheMode::Paged) => {
            (inputs["cachestarts"].shape().get(1).copied().unwrap_or_default(), case.attributes["page_size"])
        }
        None => (0, 0),
    };
    let Ok(slot) = i64::try_from(slot) else { return Vec::new() };
    if columns == 0 || page_size < 1 {
        return Vec::new();
    }
    let lengths = |starts: Vec<i64>| starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect::<Vec<_>>();
    let rows = cachestarts.chunks_exact(columns).zip(lengths(seqstarts).into_iter().zip(lengths(kvstarts)));
    let mut owners = Vec::new();
    for (sequence, (row, (seqlen, kvlen))) in rows.enumerate() {
        for (&start, page) in row.iter().zip(0i64..) {
            let within = slot.checked_sub(start).filter(|distance| (0..page_size).contains(distance));
            let position =
                page.checked_mul(page_size).zip(within).and_then(|(first, within)| first.checked_add(within));
            if let Some(position) = position.filter(|&position| position < kvlen) {
                let current = position >= kvlen.saturating_sub(seqlen);
                owners.push(Owner { sequence, position: position as usize, current });
            }
        }
    }
    owners
}

/// The token of a call of static batching that has a slot, if there is one.
fn static_owner(case: &Case, call: usize, row: usize, position: usize) -> Option<Owner> {
    let inputs = &case.steps[call].inputs;
    let &[batch, seqlen, ..] = inputs["current_key"].shape() else { return None };
    let start_pos = usize::try_from(*inputs["start_pos"].indices().first()?).ok()?;
    let has_it = row < batch && position < start_pos.checked_add(seqlen)?;
    has_it.then_some(Owner { sequence: row, position, current: position >= start_pos })
}
