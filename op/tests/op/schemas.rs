//! The golden cases agree with the operators' YAML: each tensor of a legal call has the type and the shape that its
//! formulas say, under one meaning of every dimension.

use std::collections::{BTreeMap, BTreeSet};

use kvcache_conformance::{Case, Expected, Operator, Suite, Tensor, cases, schemas};
use kvcache_op::ElementType;
use kvcache_schema::STATIC_SCALES;
use serde_yaml::Value;

/// What formulas come to in a call.
#[derive(Default)]
struct Lengths(BTreeMap<String, usize>);

impl Lengths {
    /// The length of a formula: a dimension is what it is where it is met first.
    fn of(&mut self, formula: &str, met: usize) -> usize {
        let is_operator = |c: char| "+*/".contains(c);
        let Some((at, operator)) = formula.char_indices().find(|&(_, c)| is_operator(c)) else {
            return match formula.parse() {
                Ok(number) => number,
                Err(_) => *self.0.entry(formula.to_owned()).or_insert(met),
            };
        };
        let [left, right] = [&formula[..at], &formula[at + 1..]].map(|part| match part.parse() {
            Ok(number) => number,
            Err(_) => *self.0.get(part).unwrap_or_else(|| panic!("{part} of {formula} is met before")),
        });
        match operator {
            '+' => left + right,
            '*' => left * right,
            _ => left / right,
        }
    }
}

fn words(value: &Value) -> String {
    value.as_i64().map_or_else(|| value.as_str().expect("a formula").to_owned(), |number| number.to_string())
}

/// The formulas of an operand's axes; none where the caller chooses its shape.
fn formulas(schema: &Value, operand: &Value, tensor: &Tensor, code: impl Fn(&str) -> usize) -> Vec<String> {
    let rank = tensor.shape().len();
    let by_layout = |inner: &str| {
        let axes = schema["cache_layouts"][code("cache_layout")]["axes"].as_sequence().expect("axes").iter();
        axes.map(words).chain([inner.to_owned()]).collect()
    };
    let list = |shape: &Value| shape.as_sequence().expect("a list of formulas").iter().map(words).collect::<Vec<_>>();
    match (operand["shape"].as_str(), operand["name"].as_str()) {
        (Some("by cache_layout"), Some("cache")) => by_layout("Dh"),
        // (L, 2, H), any of them broadcast: said in words.
        (Some("by cache_layout"), _) if code("quant_type") == STATIC_SCALES as usize => {
            let axis = |(axis, &len): (&str, &usize)| if len == 1 { "1" } else { axis }.to_owned();
            ["num_layer", "2", "H"].into_iter().zip(tensor.shape()).map(axis).collect()
        }
        (Some("by cache_layout"), _) => by_layout("Dh/quant_group"),
        (Some("by cache_mode"), _) => list(&schema["cache_modes"][code("cache_mode")]["cachestarts"]),
        (Some("scalar or [1]"), _) => vec!["1".to_owned(); rank.min(1)],
        (Some(other), name) => panic!("{name:?} has the shape {other:?}, which this test does not know"),
        (None, _) if !operand["or_shape"].is_null() && list(&operand["or_shape"]).len() == rank => {
            list(&operand["or_shape"])
        }
        (None, _) => list(&operand["shape"]),
    }
}

/// Checks the legal calls of a suite against the schemas; gives the operands that some call has.
fn agree(cases: &[Case]) -> BTreeSet<(Operator, &'static str)> {
    let (schemas, mut seen, mut absent) = (schemas(), BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let schema = &schemas.iter().find(|(operator, _)| *operator == case.operator).expect("it has a schema").1;
        let attributes = &case.attributes;
        let quantized = attributes.get("quant_bit").is_some_and(|&quant_bit| quant_bit != 0);
        for step in &case.steps {
            let Expected::Success(after) = &step.expected else { continue };
            let state = [("cache", &case.cache), ("scale", &case.scale)].into_iter();
            let state = state.filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
            let outputs = case.outputs.iter().map(|&name| (name, &after[name]));
            let inputs = step.inputs.iter().map(|(&name, tensor)| (name, tensor));
            let all: BTreeMap<_, _> = inputs.chain(state).chain(outputs).collect();
            let last = |name: &str| {
                let (numbers, _) = all.get(name)?.bytes().as_chunks();
                Some((name.to_owned(), i64::from_le_bytes(*numbers.last()?) as usize))
            };
            let numbers = attributes.iter().map(|(&name, &value)| (name.to_owned(), value as usize));
            let mut lengths = Lengths(numbers.chain(last("start_pos")).collect());
            let totals = ["seqstarts", "kvstarts"].into_iter().filter_map(last);
            lengths.0.extend(totals.map(|(name, total)| (format!("{name}[B]"), total)));
            lengths.0.extend(all.get("seqstarts").map(|starts| ("B".to_owned(), starts.shape()[0] - 1)));
            let operands = ["inputs", "outputs"].map(|key| schema[key].as_sequence().expect("operands"));
            for operand in operands.into_iter().flatten() {
                let (name, about) = (operand["name"].as_str().expect("a name"), format!("{}: {operand:?}", case.name));
                let Some((&name, tensor)) = all.get_key_value(name) else {
                    assert!(operand["optional"] == true, "{about} is absent");
                    absent.insert((case.operator, name.to_owned()));
                    continue;
                };
                seen.insert((case.operator, name));
                // What does not count may have any type and shape.
                if name == "scale" && !quantized
                    || ["attn_mask", "head_sink"].contains(&name) && tensor.bytes().is_empty()
                {
                    continue;
                }
                let element = match operand["type"].as_str().expect("a type") {
                    "int64" => ElementType::Int64,
                    "float32" => ElementType::Float32,
                    _ if name == "attn_output" => ElementType::Float32, // as the cases keep it
                    parameter => case.types()[parameter],
                };
                assert_eq!(tensor.element(), element, "{about}");
                let formulas = formulas(schema, operand, tensor, |name| attributes[name] as usize);
                let shape: Vec<_> = formulas.iter().zip(tensor.shape()).map(|(f, &len)| lengths.of(f, len)).collect();
                assert_eq!((&shape[..], formulas.len()), (tensor.shape(), tensor.shape().len()), "{about}");
            }
        }
    }
    for (operator, schema) in schemas {
        let operands = ["inputs", "outputs"].map(|key| schema[key].as_sequence().expect("operands"));
        for operand in operands.into_iter().flatten().filter(|operand| operand["optional"] == true) {
            let is_of_suite = seen.iter().any(|(of, _)| *of == operator);
            let is_absent = absent.contains(&(operator, words(&operand["name"])));
            assert!(!is_of_suite || is_absent, "{}: {operand:?}", operator.name());
        }
    }
    seen
}

#[test]
fn golden_cases_have_the_types_and_shapes_of_the_yaml() {
    let of = |suite| agree(&cases(suite).expect("the golden cases can be read"));
    let seen: BTreeSet<_> = Suite::ALL.into_iter().flat_map(of).collect();
    let operands = |schema: &Value| ["inputs", "outputs"].map(|key| schema[key].as_sequence().map_or(0, Vec::len));
    assert_eq!(seen.len(), schemas().iter().flat_map(|(_, schema)| operands(schema)).sum::<usize>(), "{seen:?}");
}
