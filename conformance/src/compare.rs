//! Compares the results of a case's calls with the expected ones: the first difference, in the order in which a call
//! computes: `scale`, `cache`, outputs.

use std::fmt;

use kvcache_schema::ElementType;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::case::{Case, Expected, Suite, Tensors};
use crate::implementation::{CallResult, Outcome};
use crate::location::{coordinates, locate};
use crate::tensor::{Tensor, Value};

/// The first difference between what an implementation did and what a case expects. Displayed, it is one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The call, counted from 0; `None` if it is not one call that is wrong.
    pub call: Option<usize>,
    /// What is wrong: `elements` where numbers differ; `form` for a wrong type or shape, or a tensor that is missing;
    /// `refused`, `not-refused`, `refused-as`, `not-mentioned`; `calls` where there are not as many results as calls;
    /// `could-not-run` where there are no results.
    pub kind: &'static str,
    /// What the text names, by kind. Of `elements`: `tensor`, `index` and `coordinates` of the first that differs, its
    /// `location` (what it stands for), `got` and `expected` (`type`, `value`, `bits`), `tolerance`, `ulps`, how many
    /// of how many elements are `differing`, whether the call was `refused`, and which tensors differ `also`.
    #[serde(flatten)]
    pub details: Map<String, Json>,
    #[serde(skip)]
    text: String,
}

impl Difference {
    fn new(call: impl Into<Option<usize>>, kind: &'static str, text: String, details: Json) -> Self {
        let Json::Object(details) = details else { unreachable!("details have names") };
        let call = call.into();
        let text = call.map_or(text.clone(), |call| format!("call {call}: {text}"));
        Self { call, kind, details, text }
    }

    /// A case that could not be run.
    pub fn could_not_run(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::new(None, "could-not-run", reason.clone(), json!({"reason": reason}))
    }

    /// What is wrong, without numbers: what several cases may have in common.
    pub fn flaw(&self) -> String {
        let detail = |name: &str| self.details.get(name).and_then(Json::as_str).unwrap_or_default();
        let after = if self.details.get("refused") == Some(&true.into()) { OF_REFUSED } else { "" };
        match self.kind {
            "elements" => format!("{}{after} differs", detail("tensor")),
            "form" => format!("{}{after} is of another type or shape", detail("tensor")),
            "refused" => format!("refused {}", detail("error")).trim_end().to_owned(),
            "not-refused" | "refused-as" => format!("not refused as {}", detail("expected")),
            "could-not-run" => "could not be run".to_owned(),
            kind => kind.to_owned(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Case {
    /// The first difference between the results of its calls and what is expected of them.
    pub fn difference(&self, results: &[CallResult]) -> Option<Difference> {
        let (got, expected) = (results.len(), self.steps.len());
        if got != expected {
            let text = format!("got {got} calls, expected {expected}");
            return Some(Difference::new(None, "calls", text, json!({"got": got, "expected": expected})));
        }
        self.difference_of_first(results)
    }

    /// The first difference of the first calls, as many as there are results.
    pub(crate) fn difference_of_first(&self, results: &[CallResult]) -> Option<Difference> {
        let mut before = [self.cache.as_ref(), self.scale.as_ref()];
        results.iter().enumerate().find_map(|(call, result)| {
            let difference = self.difference_of_call(call, before, result);
            before = [result.cache.as_ref(), result.scale.as_ref()];
            difference
        })
    }

    fn difference_of_call(&self, call: usize, before: [Option<&Tensor>; 2], result: &CallResult) -> Option<Difference> {
        match (&self.steps[call].expected, &result.outcome) {
            (_, Outcome::Unsupported(reason)) => Some(Difference::could_not_run(reason)),
            (Expected::Refusal { kind, .. }, Outcome::Done(_)) => {
                let text = format!("not refused, expected {kind}");
                Some(Difference::new(call, "not-refused", text, json!({"expected": kind})))
            }
            (Expected::Refusal { kind: expected, mentions }, Outcome::Refused { kind, message }) => {
                if let Some(got) = kind.as_ref().filter(|kind| *kind != expected) {
                    let text = format!("refused as {got}, expected {expected}: {message}");
                    let details = json!({"got": got, "expected": expected, "message": message});
                    return Some(Difference::new(call, "refused-as", text, details));
                }
                if let Some(mention) = mentions.iter().find(|mention| !message.contains(*mention)) {
                    let text = format!("the message does not mention {mention:?}: {message}");
                    let details = json!({"mention": mention, "message": message});
                    return Some(Difference::new(call, "not-mentioned", text, details));
                }
                self.difference_of_tensors(call, true, &state(result, before, false))
            }
            (Expected::Success(_), Outcome::Refused { kind, message }) => {
                let kind_of = kind.as_ref().map_or(String::new(), |kind| format!(" as {kind}"));
                let details = json!({"error": kind, "message": message});
                Some(Difference::new(call, "refused", format!("refused{kind_of}: {message}"), details))
            }
            (Expected::Success(after), Outcome::Done(outputs)) => {
                let difference = |prefix: &str| {
                    let mut pairs = state(result, [after.get("cache"), after.get("scale")], self.any_nan);
                    pairs.extend(self.outputs_beside(outputs, (call, after), prefix));
                    self.difference_of_tensors(call, false, &pairs)
                };
                // Of what is right in two ways, the first is told.
                let is_also_wrong = || !after.contains_key("unrounded.tolerance") || difference("unrounded.").is_some();
                difference("").filter(|_| is_also_wrong())
            }
        }
    }

    /// The outputs of a call, each beside the expected one.
    fn outputs_beside<'a>(
        &self,
        outputs: &'a [Tensor],
        (call, after): (usize, &'a Tensors),
        prefix: &str,
    ) -> Vec<Pair<'a>> {
        let pair = |(i, &name): (usize, &&'static str)| {
            let expected = |name: &str| after.get(format!("{prefix}{name}").as_str());
            let exact = Pair::exact(name, outputs.get(i), expected(name), self.any_nan);
            match self.operator.suite() {
                Suite::Attention => Pair {
                    tolerance: expected(["tolerance", "mass_tolerance"][i]),
                    element: if i == 0 { Some(self.operator.t1(&self.steps[call].inputs)) } else { exact.element },
                    ..exact
                },
                _ => exact,
            }
        };
        self.outputs.iter().enumerate().map(pair).collect()
    }

    /// The first difference of a call's tensors.
    fn difference_of_tensors(&self, call: usize, refused: bool, pairs: &[Pair<'_>]) -> Option<Difference> {
        let differing = pairs.iter().map(|pair| (pair, pair.differing()));
        let mut wrong = differing.filter(|(_, indices)| indices.as_ref().is_none_or(|indices| !indices.is_empty()));
        let (pair, indices) = wrong.next()?;
        let also: Vec<_> = wrong
            .map(|(pair, indices)| {
                let elements = pair.expected.map_or(0, Value::count);
                (pair.name, indices.map_or(elements, |indices| indices.len()), elements)
            })
            .collect();
        let (Some(got), Some(expected), Some(indices)) = (pair.got, pair.expected, indices) else {
            return Some(pair.difference_of_form(call, refused));
        };
        let (name, after) = (pair.name, if refused { OF_REFUSED } else { "" });
        let index = *indices.first()?;
        let coordinates = coordinates(expected.shape(), index);
        let location = locate(self, call, name, expected, index);
        let (got, right) = (Value::at(got, index), Value::at(expected, index));
        let tolerance = pair.tolerance.and_then(|tolerance| Value::at(tolerance, index).float());
        let elements = Value::count(expected);
        let nearest = match got.element {
            ElementType::Float16 | ElementType::BFloat16 if right.element == ElementType::Float32 => {
                Value::nearest(got.element, f32::from_bits(right.bits as u32))
            }
            _ => right,
        };
        let ulps = got.ulps(nearest);

        let mut text = format!("{name}{after} differs at element {index}");
        text += &if coordinates.is_empty() { " (padding)".to_owned() } else { format!(" {coordinates:?}") };
        text += &format!(": got {got}, expected {right}");
        text += &tolerance.map_or(String::new(), |tolerance| format!(" within {tolerance:e}"));
        text += &match ulps {
            Some(0) if got.float() == Some(0.0) && got.element == right.element => ", the sign of zero".to_owned(),
            Some(ulps) => format!(", {ulps} ULP"),
            None => String::new(),
        };
        text += &location.as_ref().map_or(String::new(), |(text, _)| format!("; {text}"));
        text += &format!("; {} of {elements} elements differ", indices.len());
        for (name, differing, elements) in &also {
            text += &format!(", {differing} of {elements} of {name}");
        }
        // Numbers as text: JSON has neither NaN nor infinity.
        let value = |value: Value| json!({"type": value.element.name(), "value": value.number(), "bits": value.hex()});
        let also = also
            .iter()
            .map(|(name, differing, elements)| json!({"tensor": name, "differing": differing, "elements": elements}));
        let details = json!({
            "tensor": name,
            "index": index,
            "coordinates": coordinates,
            "location": location.map(|(_, location)| location),
            "got": value(got),
            "expected": value(right),
            "tolerance": tolerance,
            "ulps": ulps,
            "differing": indices.len(),
            "elements": elements,
            "refused": refused,
            "also": also.collect::<Vec<_>>(),
        });
        Some(Difference::new(call, "elements", text, details))
    }
}

/// What is said of the state after a refusal.
const OF_REFUSED: &str = " of a refused call";

/// The state after a call, beside the expected one.
fn state<'a>(result: &'a CallResult, [cache, scale]: [Option<&'a Tensor>; 2], any_nan: bool) -> Vec<Pair<'a>> {
    let pair = |name, got: &'a Option<Tensor>, expected| Pair::exact(name, got.as_ref(), expected, any_nan);
    vec![pair("scale", &result.scale, scale), pair("cache", &result.cache, cache)]
}

/// A tensor of a call, and the one that is expected.
#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    name: &'static str,
    got: Option<&'a Tensor>,
    expected: Option<&'a Tensor>,
    /// How far each element may be from the expected one, if not only the same bits will do.
    tolerance: Option<&'a Tensor>,
    /// The expected type, which a tensor with a tolerance does not have itself.
    element: Option<ElementType>,
    any_nan: bool,
}

impl<'a> Pair<'a> {
    fn exact(name: &'static str, got: Option<&'a Tensor>, expected: Option<&'a Tensor>, any_nan: bool) -> Self {
        Self { name, got, expected, tolerance: None, element: expected.map(Tensor::element), any_nan }
    }

    /// That it is of another type or shape, is missing, or should not be there.
    fn difference_of_form(&self, call: usize, refused: bool) -> Difference {
        let got = self.got.map(|tensor| (tensor.element(), tensor.shape()));
        let expected = self.element.zip(self.expected.map(Tensor::shape));
        let text = |form: Option<(ElementType, &[usize])>| {
            form.map_or("absent".to_owned(), |(element, shape)| format!("{element}{shape:?}"))
        };
        let json_of = |form: Option<(ElementType, &[usize])>| {
            form.map(|(element, shape)| json!({"type": element.name(), "shape": shape}))
        };
        let after = if refused { OF_REFUSED } else { "" };
        let details = json!({
            "tensor": self.name, "got": json_of(got), "expected": json_of(expected), "refused": refused,
        });
        let text = format!("{}{after} is {}, expected {}", self.name, text(got), text(expected));
        Difference::new(call, "form", text, details)
    }

    /// The indices of the elements that differ; none if its type or shape does, or whether it is there.
    fn differing(&self) -> Option<Vec<usize>> {
        let form = |tensor: Option<&'a Tensor>| tensor.map(Tensor::shape);
        if form(self.got) != form(self.expected) || self.got.map(Tensor::element) != self.element {
            return None;
        }
        let (Some(got), Some(expected)) = (self.got, self.expected) else { return Some(Vec::new()) };
        if self.tolerance.is_none() && got.bytes() == expected.bytes() {
            return Some(Vec::new());
        }
        let differs = |&i: &usize| !self.passes(i, Value::at(got, i), Value::at(expected, i));
        Some((0..Value::count(expected)).filter(differs).collect())
    }

    fn passes(&self, i: usize, got: Value, expected: Value) -> bool {
        let Some(tolerance) = self.tolerance else {
            return got.bits == expected.bits || self.any_nan && got.is_nan() && expected.is_nan();
        };
        let (Some(got), Some(expected)) = (got.float(), expected.float()) else { return false };
        match Value::at(tolerance, i).float() {
            Some(tolerance) if expected.is_finite() => (got - expected).abs() <= tolerance,
            _ => got == expected || got.is_nan() && expected.is_nan(),
        }
    }
}
