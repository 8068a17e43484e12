//! Changes of a call, which mostly make it illegal.

use kvcache_schema::ElementType;

use super::unstructured::Unstructured;
use super::values::{bits, tensor, zeros};
use crate::case::{Call, Operator, Tensors};
use crate::legal::legal;
use crate::tensor::Tensor;

/// How often a change is drawn until one breaks a single rule.
const TRIES: usize = 40;

const FAR: [i64; 8] = [-1, -2, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 62, i64::MAX, i64::MIN];

/// Changes a call until it breaks one rule, and no other of the same stage; leaves it as it was if no try does.
pub(super) fn defect(unstructured: &mut Unstructured, call: &mut Call, change: impl Fn(&mut Unstructured, &mut Call)) {
    for _ in 0..TRIES {
        let mut changed = call.clone();
        change(unstructured, &mut changed);
        if matches!(legal(&changed), Err(kinds) if kinds.len() == 1) {
            *call = changed;
            return;
        }
    }
}

/// Changes the node or its state: an attribute, a type, a shape.
pub(super) fn change_node(unstructured: &mut Unstructured, call: &mut Call) {
    let names: Vec<_> = call.attributes.keys().copied().collect();
    let (name, value) = match unstructured.below(5) {
        0 => return change_types(unstructured, call),
        1 => return change_state(unstructured, call),
        // Groups that mostly do not divide a head, and outputs that no memory has.
        2 => ("quant_group", unstructured.within(1, 12) as i64),
        3 if unstructured.one_in(2) => ("num_repeat", unstructured.pick(&[1 << 62, i64::MAX])),
        _ => {
            let name = unstructured.pick(&names);
            let value = match unstructured.below(3) {
                0 => call.attributes[name].saturating_add(unstructured.pick(&[-1, 1, 2])),
                1 => unstructured.pick(&[0, 3, 7, 9]),
                _ => unstructured.pick(&FAR),
            };
            (name, value)
        }
    };
    call.attributes.insert(name, value);
}

fn change_types(unstructured: &mut Unstructured, call: &mut Call) {
    match unstructured.below(3) {
        0 => {
            let t2 = unstructured.pick(&ElementType::T2);
            call.cache = Some(bits(&mut unstructured.fork(), t2, call.cache().shape()));
        }
        1 if call.attributes["quant_bit"] != 0 => call.scale = None,
        _ => call.scale = call.scale.as_ref().map(|scale| zeros(ElementType::Int8, scale.shape())),
    }
}

fn change_state(unstructured: &mut Unstructured, call: &mut Call) {
    let changed = match (&mut call.scale, &mut call.cache) {
        (Some(scale), _) if unstructured.one_in(2) => scale,
        (_, Some(cache)) => cache,
        _ => return,
    };
    let mut shape = changed.shape().to_vec();
    match unstructured.below(4) {
        0 => shape.insert(0, 1),
        1 => drop(shape.splice(..shape.len().min(1), [])),
        2 => shape = vec![0],
        _ if shape.is_empty() => {}
        _ => {
            let axis = unstructured.below(shape.len());
            shape[axis] = if unstructured.one_in(2) { shape[axis] + 1 } else { shape[axis].saturating_sub(1) };
        }
    }
    // An odd number of int4 in a row is no shape of bytes: who is given these could not tell what is wrong.
    if let (ElementType::Int4, Some(last)) = (changed.element(), shape.last_mut()) {
        *last += *last % 2;
    }
    *changed = bits(&mut unstructured.fork(), changed.element(), &shape);
}

/// Changes inputs: any one of them, or some in a way that breaks a rule of its own.
pub(super) fn change_inputs(unstructured: &mut Unstructured, call: &mut Call) {
    let is_dynamic = call.operator == Operator::KeyValueCache;
    match unstructured.below(10) {
        0..3 if is_dynamic => share_slots(unstructured, &mut call.inputs),
        3 if is_dynamic => take_pages(unstructured, &mut call.inputs),
        4 | 5 => {
            // Tokens that no sequence has; sequences, or positions, that the cache has not.
            let mut shape = call.inputs["current_key"].shape().to_vec();
            let (axis, more) = if is_dynamic { (0, 1) } else { (unstructured.below(2), 5) };
            if let Some(length) = shape.get_mut(axis) {
                *length += more;
            }
            let current = bits(&mut unstructured.fork(), call.t1(), &shape);
            call.inputs.extend([("current_key", current.clone()), ("current_value", current)]);
        }
        _ => {
            let names: Vec<_> = call.inputs.keys().copied().collect();
            // Slots outside of the cache are what most implementations forget.
            let name = if is_dynamic && unstructured.one_in(3) { "cachestarts" } else { unstructured.pick(&names) };
            let changed = changed_input(unstructured, &call.inputs[name]);
            call.inputs.insert(name, changed);
        }
    }
}

/// Two sequences that store to the same slots.
fn share_slots(unstructured: &mut Unstructured, inputs: &mut Tensors) {
    let starts = &inputs["cachestarts"];
    let rows = starts.shape().first().copied().unwrap_or(0);
    if rows > 1 && starts.element() == ElementType::Int64 {
        let row = starts.bytes().len() / rows;
        let (from, to) = (unstructured.below(rows), unstructured.below(rows));
        let mut changed = starts.clone();
        changed.bytes_mut().copy_within(from * row..(from + 1) * row, to * row);
        inputs.insert("cachestarts", changed);
    }
}

/// A page too few for the longest sequence, or a table of rank 1.
fn take_pages(unstructured: &mut Unstructured, inputs: &mut Tensors) {
    let starts = &inputs["cachestarts"];
    let &[rows, columns] = starts.shape() else { return };
    let changed = match unstructured.one_in(3) || columns == 0 {
        true => tensor(starts.element(), &[rows * columns], starts.bytes()),
        false => {
            let less = starts.bytes().chunks_exact(starts.element().align() * columns);
            let less: Vec<_> = less.flat_map(|row| &row[..row.len() - starts.element().align()]).copied().collect();
            tensor(starts.element(), &[rows, columns - 1], &less)
        }
    };
    inputs.insert("cachestarts", changed);
}

/// An input of any operator, changed: indices with another entry, or of another length, rank or type; other tensors of
/// another type, rank or shape.
pub fn changed_input(unstructured: &mut Unstructured, input: &Tensor) -> Tensor {
    match input.element() {
        ElementType::Int64 => changed_indices(unstructured, input),
        _ => changed_values(unstructured, input),
    }
}

fn changed_values(unstructured: &mut Unstructured, input: &Tensor) -> Tensor {
    let mut shape = input.shape().to_vec();
    match unstructured.below(3) {
        0 if input.element() == ElementType::Float32 => return zeros(ElementType::Float16, &shape),
        0 => return zeros(ElementType::Float32, &shape),
        1 => shape.insert(0, 1),
        _ if shape.is_empty() => {}
        _ => {
            let axis = unstructured.below(shape.len());
            shape[axis] += 1;
        }
    }
    bits(&mut unstructured.fork(), input.element(), &shape)
}

fn changed_indices(unstructured: &mut Unstructured, input: &Tensor) -> Tensor {
    let (mut shape, mut values) = (input.shape().to_vec(), input.indices());
    match unstructured.below(9) {
        0 => return zeros(ElementType::Float32, &shape),
        1 => shape.insert(0, 1),
        2 if shape.len() == 1 => {
            values.push(0);
            shape[0] += 1;
        }
        3 if shape.len() == 1 && !values.is_empty() => {
            values.pop();
            shape[0] -= 1;
        }
        _ if values.is_empty() => {}
        kind => {
            let i = unstructured.below(values.len());
            let near = values[i].saturating_add(unstructured.pick(&[-3, -2, -1, 1, 2, 3]));
            values[i] = if kind % 2 == 0 { unstructured.pick(&FAR) } else { near };
        }
    }
    Tensor::of_indices(&values, &shape)
}
