//! Makes a call illegal: changes it, until it breaks one rule and no other of the same stage, or whatever comes of it.
//! And which rules a call breaks, and what calls must do.

use kvcache_schema::{Attributes, ElementType};

use super::entropy::{Entropy, bits, has_nan, indices, tensor, zeros};
use super::plan::{Plan, Planned};
use crate::case::{After, Case, Expected, NanRule, Step, Types};
use crate::oracle::{Call, Inputs, Oracle, PredictedOutcome, Prediction, State};
use crate::tensor::Tensor;

/// How often a defect is drawn until one breaks a single rule.
const TRIES: usize = 40;

const FAR: [i64; 8] = [-1, -2, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 62, i64::MAX, i64::MIN];

impl<A: Clone, I: Inputs<A>> Planned<A, I> {
    /// Changes it until it breaks one rule; leaves it as it was if no try does.
    pub(super) fn defect(&mut self, entropy: &mut Entropy, change: impl Fn(&mut Entropy, &mut Self)) {
        for _ in 0..TRIES {
            let mut changed = self.clone();
            change(entropy, &mut changed);
            let Self { types, attributes, inputs, cache, scale } = &changed;
            if matches!(broken(*types, attributes, inputs, cache, scale.as_ref()), Ok(Some(_))) {
                *self = changed;
                return;
            }
        }
    }
}

/// Any call: a legal one that is changed in some places, and mostly is illegal then, by one rule or by several.
pub fn changed_case(entropy: &mut Entropy) -> Case {
    let plan = if entropy.one_in(3) { Plan::draw(entropy, 3, 12) } else { Plan::small(entropy) };
    let mut call = plan.call(entropy).with_unused_scale(entropy);
    for _ in 0..entropy.within(1, 3) {
        match entropy.one_in(3) {
            true => change_node(entropy, &mut call),
            false => change_inputs(entropy, &mut call),
        }
    }
    // A legal call of outputs that no memory has would be made.
    call.attributes.num_repeat = call.attributes.num_repeat.min(9);
    // Types are those of the tensors.
    call.types.t1 = call.inputs.current_key.element();
    call.case()
}

pub(super) fn change_node(entropy: &mut Entropy, node: &mut Planned) {
    match entropy.below(4) {
        // Groups that mostly do not divide a head, and outputs that no memory has.
        3 if entropy.one_in(2) => node.attributes.num_repeat = entropy.pick(&[1 << 62, i64::MAX]),
        3 => node.attributes.quant_group = entropy.within(1, 12) as i64,
        0 => {
            let spec = &Attributes::SPEC[entropy.below(Attributes::SPEC.len())];
            let value = attribute(entropy, spec.value(&node.attributes));
            assert!(node.attributes.set(spec.name, value), "an attribute's own name");
        }
        1 => node.change_types(entropy, node.attributes.quant_bit),
        _ => node.change_state(entropy),
    }
}

/// A value beside or far from an attribute's.
pub(super) fn attribute(entropy: &mut Entropy, value: i64) -> i64 {
    match entropy.below(3) {
        0 => value.saturating_add(entropy.pick(&[-1, 1, 2])),
        1 => entropy.pick(&[0, 3, 7, 9]),
        _ => entropy.pick(&FAR),
    }
}

impl<A, I> Planned<A, I> {
    pub(super) fn change_types(&mut self, entropy: &mut Entropy, quant_bit: i64) {
        match entropy.below(3) {
            0 => {
                self.types.t2 = entropy.pick(&ElementType::T2);
                self.cache = bits(&mut entropy.fork(), self.types.t2, self.cache.shape());
            }
            1 if quant_bit != 0 => (self.types.t3, self.scale) = (None, None),
            _ => {
                let Some(given) = &self.scale else { return };
                self.types.t3 = Some(ElementType::Int8);
                self.scale = Some(zeros(ElementType::Int8, given.shape()));
            }
        }
    }

    pub(super) fn change_state(&mut self, entropy: &mut Entropy) {
        let changed = match &mut self.scale {
            Some(scale) if entropy.one_in(2) => scale,
            _ => &mut self.cache,
        };
        let mut shape = changed.shape().to_vec();
        match entropy.below(4) {
            0 => shape.insert(0, 1),
            1 => drop(shape.splice(..shape.len().min(1), [])),
            2 => shape = vec![0],
            _ if shape.is_empty() => {}
            _ => {
                let axis = entropy.below(shape.len());
                shape[axis] = if entropy.one_in(2) { shape[axis] + 1 } else { shape[axis].saturating_sub(1) };
            }
        }
        // An odd number of int4 in a row is no shape of bytes: who is given these could not tell what is wrong.
        if let (ElementType::Int4, Some(last)) = (changed.element(), shape.last_mut()) {
            *last += *last % 2;
        }
        *changed = bits(&mut entropy.fork(), changed.element(), &shape);
    }
}

pub(super) fn change_inputs(entropy: &mut Entropy, call: &mut Planned) {
    let inputs = &mut call.inputs;
    match entropy.below(15) {
        0 | 12.. => {
            // Two sequences that store to the same slots.
            let rows = inputs.cachestarts.shape().first().copied().unwrap_or(0);
            if rows > 1 && inputs.cachestarts.element() == ElementType::Int64 {
                let row = inputs.cachestarts.bytes().len() / rows;
                let (from, to) = (entropy.below(rows), entropy.below(rows));
                let (bytes, shape) = (inputs.cachestarts.bytes().to_vec(), inputs.cachestarts.shape().to_vec());
                let mut changed = bytes.clone();
                changed[to * row..][..row].copy_from_slice(&bytes[from * row..][..row]);
                inputs.cachestarts = tensor(ElementType::Int64, &shape, &changed);
            }
        }
        1 => inputs.current_value = change_current(entropy, &inputs.current_value),
        2 if inputs.cachestarts.shape().len() == 2 && inputs.cachestarts.element() == ElementType::Int64 => {
            // A page too few for the longest sequence, or a table of rank 1.
            let (shape, bytes) = (inputs.cachestarts.shape().to_vec(), inputs.cachestarts.bytes().to_vec());
            inputs.cachestarts = match entropy.one_in(3) || shape[1] == 0 {
                true => tensor(ElementType::Int64, &[shape[0] * shape[1]], &bytes),
                false => {
                    let less: Vec<_> =
                        bytes.chunks_exact(8 * shape[1]).flat_map(|row| &row[..row.len() - 8]).copied().collect();
                    tensor(ElementType::Int64, &[shape[0], shape[1] - 1], &less)
                }
            };
        }
        3 | 4 => inputs.cachestarts = change_index(entropy, &inputs.cachestarts),
        5 => inputs.seqstarts = change_index(entropy, &inputs.seqstarts),
        6 => inputs.kvstarts = change_index(entropy, &inputs.kvstarts),
        7 => inputs.start_pos = change_index(entropy, &inputs.start_pos),
        8 => inputs.max_seqlen = change_index(entropy, &inputs.max_seqlen),
        9 => inputs.max_kvlen = change_index(entropy, &inputs.max_kvlen),
        10 => {
            // Tokens that no sequence has.
            let mut shape = inputs.current_key.shape().to_vec();
            shape.iter_mut().take(1).for_each(|len| *len += 1);
            inputs.current_key = bits(&mut entropy.fork(), inputs.current_key.element(), &shape);
            inputs.current_value = inputs.current_key.clone();
        }
        _ => inputs.current_key = change_current(entropy, &inputs.current_key),
    }
}

/// Current tokens of another type, rank or shape.
pub(super) fn change_current(entropy: &mut Entropy, current: &Tensor) -> Tensor {
    let mut shape = current.shape().to_vec();
    match entropy.below(3) {
        0 => {
            let other =
                if current.element() == ElementType::Float32 { ElementType::Float16 } else { ElementType::Float32 };
            return zeros(other, &shape);
        }
        1 => shape.insert(0, 1),
        _ if shape.is_empty() => {}
        _ => {
            let axis = entropy.below(shape.len());
            shape[axis] += 1;
        }
    }
    bits(&mut entropy.fork(), current.element(), &shape)
}

/// Indices with another entry, an entry too many or too few, of another rank or type.
pub(super) fn change_index(entropy: &mut Entropy, tensor: &Tensor) -> Tensor {
    if tensor.element() != ElementType::Int64 {
        return tensor.clone();
    }
    let mut shape = tensor.shape().to_vec();
    let mut values: Vec<i64> =
        tensor.bytes().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap_or_default())).collect();
    match entropy.below(9) {
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
            let i = entropy.below(values.len());
            let near = values[i].saturating_add(entropy.pick(&[-3, -2, -1, 1, 2, 3]));
            values[i] = if kind % 2 == 0 { entropy.pick(&FAR) } else { near };
        }
    }
    indices(&shape, &values)
}

/// The kind of error of the one rule that a call breaks, if it breaks any: `Err` if it breaks several.
pub(super) fn broken<A, I: Inputs<A>>(
    types: Types,
    attributes: &A,
    inputs: &I,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<Option<&'static str>, ()> {
    let call = Call { types, attributes, inputs, cache, scale };
    let mut kinds = I::broken_rules(&call);
    kinds.dedup();
    match kinds[..] {
        [] => Ok(None),
        [kind] => Ok(Some(kind)),
        _ => Err(()),
    }
}

/// A case whose calls must do what the oracle does; `inputs` of what is planned are not among them.
pub(super) fn case<A: Clone, I: Inputs<A>>(name: String, about: &str, on: Planned<A, I>, calls: Vec<I>) -> Case<A, I> {
    let Planned { types, attributes, cache, scale, .. } = on;
    let about = about.to_owned();
    let unknown = || Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    let steps = calls.into_iter().map(|inputs| Step { inputs, expected: unknown() }).collect();
    let folder = name.clone().into();
    let mut case =
        Case { name, folder, about, rules: Vec::new(), types, attributes, nan: NanRule::Exact, cache, scale, steps };
    let expected: Vec<_> = Oracle::default().predict(&case).map(expected).collect();
    for (step, expected) in case.steps.iter_mut().zip(expected) {
        step.expected = expected;
    }
    // Arithmetic makes NaN with the bits of the machine; where values are copied they keep theirs.
    let arithmetic = types.t1 != types.t2;
    let outputs = |step: &Step<I>| match &step.expected {
        Expected::Success(after) => after.outputs.iter().chain(&after.cache).chain(&after.scale).any(has_nan),
        Expected::Refusal { .. } => false,
    };
    if arithmetic && case.steps.iter().any(outputs) {
        case.nan = NanRule::Any;
    }
    case
}

pub(super) fn expected(Prediction { outcome, state }: Prediction) -> Expected {
    match (outcome, state.as_deref()) {
        (PredictedOutcome::Done(outputs), Some(State { cache, scale })) => {
            let (cache, scale) = (Some(cache.clone()), scale.clone());
            Expected::Success(Box::new(After { outputs, tolerance: Vec::new(), unrounded: None, cache, scale }))
        }
        (PredictedOutcome::Refused(kind), _) => Expected::Refusal { kind: kind.to_owned(), mentions: Vec::new() },
        (outcome, _) => unreachable!("the oracle without mistakes knows what a call does: {outcome:?}"),
    }
}

impl<A: Clone, I: Inputs<A>> Planned<A, I> {
    /// The call as a case, which must do what the oracle does.
    pub fn case(self) -> Case<A, I> {
        let calls = vec![self.inputs.clone()];
        case("planned".to_owned(), "A random legal call.", self, calls)
    }
}
