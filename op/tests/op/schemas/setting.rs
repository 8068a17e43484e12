//! A node with the operands of its call, as the schema's formulas give them.

use kvcache_conformance::Tensor;
use kvcache_op::{ElementType, Error};
use kvcache_testing::schemas::schemas;
use serde::Deserialize;
use serde_yaml::Value;

use super::operators::{CACHESTARTS, Numbers, OPERATORS, Operands, Operator};

#[derive(Deserialize)]
pub struct Schema {
    #[serde(default)]
    pub cache_modes: Vec<Mode>,
    #[serde(default)]
    pub cache_layouts: Vec<Layout>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
}

#[derive(Deserialize)]
pub struct Mode {
    pub code: i64,
    pub cachestarts: Vec<Value>,
}

#[derive(Deserialize)]
pub struct Layout {
    pub code: i64,
    pub axes: Vec<Value>,
}

#[derive(Deserialize)]
pub struct Operand {
    pub name: String,
    pub r#type: String,
    pub shape: Value,
    pub or_shape: Option<Value>,
    #[serde(default)]
    pub in_out: bool,
    #[serde(default)]
    pub optional: bool,
}

/// A node of one layout and mode, and its schema.
pub struct Setting {
    pub operator: &'static Operator,
    pub schema: Schema,
    pub attributes: Numbers,
}

impl Operator {
    fn schema(&self) -> Schema {
        let (_, schema) = schemas().into_iter().find(|&(file, _)| file == self.file).expect("the file is a schema");
        serde_yaml::from_value(schema).expect("the schema has the structure that this test knows")
    }

    /// The call in every layout and mode; in one node, where there is no cache.
    fn settings(&'static self) -> Vec<Setting> {
        let schema = self.schema();
        let codes = |name: &'static str, codes: Vec<i64>| -> Vec<Option<(&str, i64)>> {
            if codes.is_empty() { vec![None] } else { codes.into_iter().map(|code| Some((name, code))).collect() }
        };
        let layouts = codes("cache_layout", schema.cache_layouts.iter().map(|layout| layout.code).collect());
        let modes = codes("cache_mode", schema.cache_modes.iter().map(|mode| mode.code).collect());
        let setting = |choices: [Option<(&str, i64)>; 2]| {
            let all = self.attributes.iter().copied().chain(choices.into_iter().flatten());
            let attributes = all.map(|(name, value)| (name.to_owned(), value)).collect();
            Setting { operator: self, schema: self.schema(), attributes }
        };
        layouts.iter().flat_map(|&layout| modes.iter().map(move |&mode| setting([layout, mode]))).collect()
    }
}

impl Setting {
    fn mode(&self) -> usize {
        self.attributes.get("cache_mode").map_or(0, |&mode| mode as usize)
    }

    /// The axes of `cache` and `scale`, without the innermost.
    fn axes(&self) -> &[Value] {
        &self.schema.cache_layouts[self.attributes["cache_layout"] as usize].axes
    }

    /// Zeros of an operand's type and shape, as its formulas say; a mask has the greater of its ranks if it may.
    fn tensor(&self, operand: &Operand, deeper: bool) -> Tensor {
        let axes_and = |inner: &str| self.axes().iter().cloned().chain([inner.into()]).collect::<Vec<Value>>();
        let shape = operand.or_shape.as_ref().filter(|_| deeper).unwrap_or(&operand.shape);
        let formulas = match (shape.as_str(), operand.name.as_str()) {
            (Some("by cache_layout"), "cache") => axes_and("Dh"),
            (Some("by cache_layout"), "scale") => axes_and("Dh/quant_group"),
            (Some("by cache_mode"), "cachestarts") => self.schema.cache_modes[self.mode()].cachestarts.clone(),
            (Some("scalar or [1]"), _) if deeper => return Tensor::zeros(ElementType::Int64, vec![1]).unwrap(),
            (Some("scalar or [1]"), _) => Vec::new(),
            (Some(other), name) => panic!("{name} has the shape {other:?}, which this test does not know"),
            (None, _) => shape.as_sequence().expect("a list of formulas").clone(),
        };
        let length = |formula: &Value| {
            let formula = formula.as_i64().map_or_else(|| formula.as_str().unwrap().to_owned(), |n| n.to_string());
            let known = self.operator.lengths.iter().find(|(name, _)| *name == formula);
            known.unwrap_or_else(|| panic!("this test does not know {formula:?}")).1
        };
        let element = match operand.r#type.as_str() {
            "T1" => ElementType::Float16,
            "T2" => ElementType::Int8,
            "T3" | "float32" => ElementType::Float32,
            "int64" => ElementType::Int64,
            other => panic!("this test does not know the type {other:?}"),
        };
        Tensor::zeros(element, formulas.iter().map(length).collect()).unwrap()
    }

    /// All operands, by name; the indices with the values of the call.
    pub fn operands(&self, deeper: bool) -> Operands {
        let all = self.schema.inputs.iter().chain(&self.schema.outputs);
        let mut operands: Operands = all.map(|operand| (operand.name.clone(), self.tensor(operand, deeper))).collect();
        let cachestarts = [("cachestarts", CACHESTARTS[self.mode()])];
        for (name, values) in self.operator.indices.iter().copied().chain(cachestarts) {
            if let Some(tensor) = operands.get_mut(name) {
                let bytes: Vec<_> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                tensor.bytes_mut().copy_from_slice(&bytes);
            }
        }
        operands
    }

    /// Whether two shapes of a tensor differ in a length that is the caller's choice: with another the call is legal,
    /// or another tensor or slot does not go with it.
    pub fn is_callers_own(&self, name: &str, shape: &[usize], other: &[usize]) -> bool {
        let axis = match name {
            "cache" | "scale" => self.axes().iter().position(|axis| axis.as_str() == Some("MaxT")),
            "cachestarts" if self.mode() == 1 => Some(1),
            "attn_mask" => Some(shape.len() - 1),
            _ => None,
        };
        axis.is_some_and(|axis| shape.len() == other.len() && shape[axis] != other[axis])
    }

    pub fn run(&self, operands: &mut Operands) -> Result<(), Error> {
        (self.operator.run)(&self.attributes, operands)
    }
}

/// Every operator in every layout and mode.
pub fn settings() -> impl Iterator<Item = Setting> {
    OPERATORS.iter().flat_map(Operator::settings)
}
