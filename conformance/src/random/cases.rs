//! Random cases: what their calls must do is what the reference kernel does, or [`legal`] says.

use std::path::PathBuf;

use kvcache_op::{AttentionBackend, Backend, Serial};
use kvcache_schema::ElementType;

use super::changes::{change_inputs, change_node, defect};
use super::plan::Plan;
use super::static_batching::{another, static_call};
use super::unstructured::Unstructured;
use super::values::{has_nan, scales};
use crate::backends::Backends;
use crate::case::{Call, Case, Expected, Step, Suite, Tensors};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::legal::legal;

/// So many cases of a seed, named `random-SEED-I`; none of attention.
pub fn cases(suite: Suite, n: usize, seed: u64) -> Vec<Case> {
    let case = |i| {
        let name = format!("random-{seed}-{i}");
        match suite {
            Suite::KeyValueCache => Some(dynamic_case(&mut Unstructured::case(seed, i), name)),
            Suite::Static => Some(static_case(&mut Unstructured::case(!seed, i), name)),
            Suite::Attention => None,
        }
    };
    (0..n).filter_map(case).collect()
}

/// A case of small calls of `KeyValueCache`, of dynamic or static batching, all of them legal or one that breaks a
/// rule.
pub fn any_case(unstructured: &mut Unstructured, is_static: bool) -> Case {
    let case = if is_static { static_case } else { dynamic_case };
    case(unstructured, "any".to_owned())
}

/// Any call: a legal one that is changed in some places, and mostly is illegal then, by one rule or by several.
pub fn changed_case(unstructured: &mut Unstructured) -> Case {
    let plan = if unstructured.one_in(3) { Plan::draw(unstructured, 3, 12) } else { Plan::small(unstructured) };
    let mut call = plan.call(unstructured);
    give_unused_scale(unstructured, &mut call);
    for _ in 0..unstructured.within(1, 3) {
        match unstructured.one_in(3) {
            true => change_node(unstructured, &mut call),
            false => change_inputs(unstructured, &mut call),
        }
    }
    // A legal call of outputs that no memory has would be made.
    let num_repeat = call.attributes["num_repeat"].min(9);
    call.attributes.insert("num_repeat", num_repeat);
    call.case()
}

fn dynamic_case(unstructured: &mut Unstructured, name: String) -> Case {
    let mut plan = Plan::small(unstructured);
    let mut inputs = |unstructured: &mut Unstructured| {
        plan.draw_sequences(unstructured);
        plan.inputs(unstructured)
    };
    let (mut calls, max_ts): (Vec<_>, Vec<_>) = (0..unstructured.within(1, 4)).map(|_| inputs(unstructured)).unzip();
    let max_t = max_ts.into_iter().max().unwrap_or_default();
    let mut on = plan.planned(unstructured, calls[0].clone(), max_t);
    let rotates = on.attributes["quant_bit"] != 0 && unstructured.one_in(3);
    on.attributes.insert("quant_rotation", rotates.into());
    give_unused_scale(unstructured, &mut on);
    let mut about = "Random legal calls.";
    match unstructured.below(6) {
        3 => {
            defect(unstructured, &mut on, change_node);
            calls = vec![on.inputs.clone()];
            about = "A random call on a node that is not legal, or on one that is.";
        }
        4 | 5 => {
            let at = unstructured.below(calls.len());
            let mut call = Call { inputs: calls[at].clone(), ..on.clone() };
            defect(unstructured, &mut call, change_inputs);
            calls.insert(at, call.inputs);
            about = "Random legal calls, and one that is refused between them.";
        }
        _ => {}
    }
    case(name, about, on, calls)
}

fn static_case(unstructured: &mut Unstructured, name: String) -> Case {
    let tokens = if unstructured.one_in(24) { 150 } else { 6 };
    let mut on = static_call(unstructured, 2, tokens);
    give_unused_scale(unstructured, &mut on);
    let mut calls = vec![on.inputs.clone()];
    let mut about = "Random legal calls.";
    if unstructured.one_in(3) {
        let change = if unstructured.one_in(2) { change_node } else { change_inputs };
        defect(unstructured, &mut on, change);
        calls = vec![on.inputs.clone()];
        about = "A random call that is not legal, or one that is.";
    } else {
        calls.extend((0..unstructured.below(3)).map(|_| another(unstructured, &on)));
    }
    case(name, about, on, calls)
}

/// Gives a call, now and then, a scale that is not used: one of any type and shape.
fn give_unused_scale(unstructured: &mut Unstructured, call: &mut Call) {
    if call.scale.is_none() && unstructured.one_in(6) {
        let t3 = unstructured.pick(&ElementType::T3);
        let shape = [unstructured.below(4), 3];
        call.scale = Some(scales(&mut unstructured.fork(), t3, &shape));
    }
}

impl Call {
    /// The call of `KeyValueCache` as a case.
    pub fn case(self) -> Case {
        let calls = vec![self.inputs.clone()];
        case("planned".to_owned(), "A random call.", self, calls)
    }
}

/// A case of calls on a node; `inputs` of what is planned are not among them.
fn case(name: String, about: &str, on: Call, calls: Vec<Tensors>) -> Case {
    let unknown = || Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    let mut case = Case {
        name,
        folder: PathBuf::new(),
        about: about.to_owned(),
        rules: Vec::new(),
        operator: on.operator,
        attributes: on.attributes,
        floats: on.floats,
        outputs: on.operator.outputs(),
        any_nan: false,
        cache: on.cache,
        scale: on.scale,
        steps: calls.into_iter().map(|inputs| Step { inputs, expected: unknown() }).collect(),
    };
    let reference = Backends { backend: Backend::Reference, attention: AttentionBackend::Reference, workers: Serial };
    let results = reference.run(&case).expect("the reference runs every case");
    for (i, result) in results.into_iter().enumerate() {
        case.steps[i].expected = match legal(&case.call(i)) {
            Err(kinds) => Expected::Refusal { kind: kinds[0].to_owned(), mentions: Vec::new() },
            Ok(()) => Expected::Success(after(&case, result)),
        };
    }
    // Arithmetic and conversions make NaN with the bits of the machine; where values are copied they keep theirs.
    let makes_nan = |step: &Step| match &step.expected {
        Expected::Success(after) => {
            case.operator.t1(&step.inputs) != case.cache().element() && after.values().any(has_nan)
        }
        Expected::Refusal { .. } => false,
    };
    case.any_nan = case.steps.iter().any(makes_nan);
    case
}

fn after(case: &Case, result: CallResult) -> Tensors {
    let outputs = match result.outcome {
        Outcome::Done(outputs) => outputs,
        other => panic!("the reference does not make a legal call: {other:?}"),
    };
    let state = [("cache", result.cache), ("scale", result.scale)];
    let state = state.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)));
    case.outputs.iter().copied().zip(outputs).chain(state).collect()
}
