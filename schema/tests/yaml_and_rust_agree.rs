//! Holds the schemas in YAML and the Rust types together: a fact changed in one and not in the other fails here.

use std::collections::BTreeMap;

use kvcache_conformance::{Operator as Of, schemas};
use kvcache_schema::{
    AttentionAttributes, AttributeSpec, Attributes, Axis, CacheAttentionAttributes, CacheLayout, CacheMode, DOMAINS,
    ElementType, INPUTS, NAME, OUTPUTS, OperatorAttributes, OperatorKind, QuantBit, SCALE_FLOOR, SCHEMA,
    StaticAttributes, StaticAxis, StaticCacheLayout, TypeCombination, VERSION, multi_head_attention,
    multi_head_cache_attention, static_key_value_cache,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Schema {
    name: String,
    domains: Vec<String>,
    version: u32,
    attributes: Vec<Attribute>,
    #[serde(default)]
    cache_modes: Vec<Mode>,
    cache_layouts: Vec<Layout>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    types: BTreeMap<String, Vec<String>>,
    combinations: Vec<Combination>,
    extensions: Vec<Combination>,
    quantization: Quantization,
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    #[serde(default)]
    required: bool,
    /// "float" of one; the others are integers.
    #[serde(rename = "type")]
    number: Option<String>,
    /// 0 where there is none, as in Rust.
    #[serde(default)]
    default: f64,
    min: Option<f64>,
    max: Option<i64>,
    one_of: Option<Vec<i64>>,
    not: Option<i64>,
    /// The list whose codes are the legal values.
    codes_of: Option<String>,
}

#[derive(Deserialize)]
struct Mode {
    code: i64,
    name: String,
}

#[derive(Deserialize)]
struct Layout {
    code: i64,
    name: String,
    axes: Vec<serde_yaml::Value>,
}

#[derive(Deserialize)]
struct Operand {
    name: String,
    #[serde(default)]
    optional: bool,
}

#[derive(Deserialize)]
struct Combination {
    quant_bit: i64,
    #[serde(rename = "T1")]
    t1: String,
    #[serde(rename = "T2")]
    t2: String,
    #[serde(rename = "T3")]
    t3: Option<String>,
}

#[derive(Deserialize)]
struct Quantization {
    scale_floor: f32,
    qmax: BTreeMap<String, i16>,
}

#[derive(Deserialize)]
struct Operator {
    name: String,
    domains: Vec<String>,
    version: u32,
    attributes: Vec<Attribute>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    types: BTreeMap<String, Vec<String>>,
}

fn schema() -> Schema {
    serde_yaml::from_str(SCHEMA).expect("key_value_cache.yaml has the structure this test knows")
}

/// The schema of an operator, every `as_in` resolved.
fn operator<T: DeserializeOwned>(of: Of) -> T {
    let schema = schemas().into_iter().find(|&(operator, _)| operator == of).expect("it has a schema").1;
    serde_yaml::from_value(schema).expect("the schema has the structure this test knows")
}

fn element(name: &str) -> ElementType {
    ElementType::from_name(name).unwrap_or_else(|| panic!("{name} is no element type"))
}

#[test]
fn names_domains_and_version() {
    let schema = schema();
    assert_eq!(schema.name, NAME);
    assert_eq!(schema.domains, DOMAINS);
    assert_eq!(schema.version, VERSION);
    assert_eq!(schema.inputs.iter().map(|input| &input.name).collect::<Vec<_>>(), INPUTS.each_ref());
    optional_agrees(&schema.inputs);
    assert_eq!(schema.outputs.iter().map(|output| &output.name).collect::<Vec<_>>(), OUTPUTS.each_ref());
}

#[test]
fn attributes_defaults_and_ranges() {
    let schema = schema();
    attributes_agree(schema.attributes.iter(), &Attributes::SPEC, &schema.cache_layouts);
    for rust in &Attributes::SPEC {
        assert_eq!(rust.value(&Attributes::default()), rust.default, "{}", rust.name);
    }
}

/// `layouts` are the operator's, if it has any.
fn attributes_agree<'a, A: 'a>(
    yaml: impl Iterator<Item = &'a Attribute>,
    rust: &[AttributeSpec<A>],
    layouts: &[Layout],
) {
    let yaml: Vec<_> = yaml.collect();
    assert_eq!(yaml.len(), rust.len());
    for (yaml, rust) in yaml.into_iter().zip(rust) {
        let max = match yaml.codes_of.as_deref() {
            None => yaml.max,
            Some("cache_modes") => schema().cache_modes.last().map(|mode| mode.code),
            Some("cache_layouts") => layouts.last().map(|layout| layout.code),
            Some(other) => panic!("{other} is no list of codes"),
        };
        assert_eq!((&*yaml.name, yaml.required, &yaml.number), (rust.name, rust.required, &None));
        assert_eq!(yaml.default, rust.default as f64, "{}", rust.name);
        assert_eq!(yaml.min, Some(rust.min as f64), "{}", rust.name);
        assert_eq!(max, rust.max, "{}", rust.name);
        assert_eq!(yaml.one_of.as_deref(), rust.one_of, "{}", rust.name);
        assert_eq!(yaml.not, rust.not, "{}", rust.name);
    }
}

/// The attributes of attention, integers and then floats.
fn attention_agrees(yaml: &[Attribute]) {
    let (integers, floats) = yaml.split_at(AttentionAttributes::SPEC.len());
    attributes_agree(integers.iter(), &AttentionAttributes::SPEC, &[]);
    assert_eq!(floats.len(), AttentionAttributes::FLOATS.len());
    for (yaml, rust) in floats.iter().zip(&AttentionAttributes::FLOATS) {
        assert_eq!((&*yaml.name, yaml.number.as_deref(), yaml.default), (rust.name, Some("float"), 0.0));
        assert_eq!(yaml.min, rust.min.map(f64::from), "{}", rust.name);
    }
}

#[test]
fn cache_modes() {
    let yaml: Vec<_> = schema().cache_modes.into_iter().map(|mode| (mode.code, mode.name)).collect();
    let rust: Vec<_> = CacheMode::ALL.into_iter().map(|mode| (mode.code(), format!("{mode:?}"))).collect();
    assert_eq!(yaml, rust);
}

#[test]
fn cache_layouts_and_their_axes() {
    let yaml = schema().cache_layouts;
    assert_eq!(yaml.len(), CacheLayout::ALL.len());
    for (yaml, rust) in yaml.iter().zip(CacheLayout::ALL) {
        assert_eq!((yaml.code, &yaml.name), (rust.code(), &format!("{rust:?}")));
        let axes: Vec<serde_yaml::Value> = rust
            .axes()
            .into_iter()
            .map(|axis| match axis {
                Axis::Token => "MaxT".into(),
                Axis::Layer => "L".into(),
                Axis::Kv => 2.into(),
                Axis::Head => "H".into(),
            })
            .collect();
        assert_eq!(yaml.axes, axes, "{rust:?}");
    }
}

#[test]
fn types_and_their_legal_combinations() {
    let schema = schema();
    let constraint = |name: &str| schema.types[name].iter().map(|name| element(name)).collect::<Vec<_>>();
    assert_eq!(constraint("T1"), ElementType::T1);
    assert_eq!(constraint("T2"), ElementType::T2);
    assert_eq!(constraint("T3"), ElementType::T3);
    assert_eq!(combinations(&schema.combinations), TypeCombination::LEGAL);
    assert_eq!(combinations(&schema.extensions), TypeCombination::EXTENSIONS);
    for row in TypeCombination::all() {
        assert!(ElementType::T1.contains(&row.t1) && ElementType::T2.contains(&row.t2), "{row:?}");
        let coding = QuantBit::of_element(row.t2).filter(|_| row.quant_bit != 0);
        assert_eq!(
            coding.map(|coding| (coding.code(), coding.quant_type())),
            (row.quant_bit != 0).then_some((row.quant_bit, row.quant_type())),
            "{row:?}"
        );
    }
}

fn combinations(rows: &[Combination]) -> Vec<TypeCombination> {
    let row = |row: &Combination| TypeCombination {
        quant_bit: row.quant_bit,
        t1: element(&row.t1),
        t2: element(&row.t2),
        t3: row.t3.as_deref().map(element),
    };
    rows.iter().map(row).collect()
}

#[test]
fn quantization_constants() {
    let yaml = schema().quantization;
    assert_eq!(yaml.scale_floor, SCALE_FLOOR);
    let row = |coding: QuantBit| (coding.element().name().to_owned(), coding.qmax());
    let rust: BTreeMap<_, _> = QuantBit::ALL.into_iter().map(row).collect();
    assert_eq!(yaml.qmax, rust);
}

#[test]
fn attention_over_packed_keys_and_values() {
    let yaml: Operator = operator(Of::MultiHeadAttention);
    let outputs = [multi_head_attention::OUTPUTS[0], multi_head_attention::MASS];
    operator_agrees(&yaml, &multi_head_attention::INPUTS, &outputs);
    attention_agrees(&yaml.attributes);
}

#[test]
fn attention_over_the_cache() {
    let yaml: Operator = operator(Of::MultiHeadCacheAttention);
    let outputs = [multi_head_cache_attention::OUTPUTS[0], multi_head_cache_attention::MASS];
    operator_agrees(&yaml, &multi_head_cache_attention::INPUTS, &outputs);
    let (attention, cache) = yaml.attributes.split_at(AttentionAttributes::default().names().len());
    attention_agrees(attention);
    let not_an_attribute = CacheAttentionAttributes::NOT_AN_ATTRIBUTE;
    let rust: Vec<_> = Attributes::SPEC.into_iter().filter(|spec| spec.name != not_an_attribute).collect();
    assert_eq!(rust.len(), Attributes::SPEC.len() - 1);
    attributes_agree(cache.iter(), &rust, &schema().cache_layouts);

    let yaml: Schema = operator(Of::MultiHeadCacheAttention);
    let rows = [combinations(&yaml.combinations), combinations(&yaml.extensions)].concat();
    assert_eq!(rows, multi_head_cache_attention::all_combinations().collect::<Vec<_>>());
    assert_eq!(yaml.types["T2"], schema().types["T2"]);
    assert_eq!(yaml.types["T3"], schema().types["T3"]);
}

#[test]
fn static_batching() {
    let yaml: Schema = operator(Of::StaticKeyValueCache);
    assert_eq!((&*yaml.name, yaml.version), (NAME, VERSION));
    assert_eq!(yaml.domains, static_key_value_cache::DOMAINS);
    assert_eq!(yaml.inputs.iter().map(|input| &*input.name).collect::<Vec<_>>(), static_key_value_cache::INPUTS);
    optional_agrees(&yaml.inputs);
    assert_eq!(yaml.outputs.iter().map(|output| &*output.name).collect::<Vec<_>>(), OUTPUTS);
    attributes_agree(yaml.attributes.iter(), &StaticAttributes::SPEC, &yaml.cache_layouts);
    let axes = |layout: StaticCacheLayout| {
        layout.axes().map(|axis| match axis {
            StaticAxis::Batch => serde_yaml::Value::from("MaxB"),
            StaticAxis::Position => "MaxS".into(),
            StaticAxis::Layer => "L".into(),
            StaticAxis::Kv => 2.into(),
            StaticAxis::Head => "H".into(),
        })
    };
    assert_eq!(yaml.cache_layouts.len(), StaticCacheLayout::ALL.len());
    for (yaml, rust) in yaml.cache_layouts.iter().zip(StaticCacheLayout::ALL) {
        assert_eq!((yaml.code, &yaml.name), (rust.code(), &format!("{rust:?}")));
        assert_eq!(yaml.axes, axes(rust), "{rust:?}");
    }
    assert_eq!(combinations(&yaml.combinations), TypeCombination::LEGAL);
    assert_eq!(combinations(&yaml.extensions), TypeCombination::EXTENSIONS);
    assert_eq!(yaml.types, schema().types);
}

/// Their schemas are not the kit's, whose cases have caches.
#[test]
fn quantized_matrices() {
    use kvcache_schema::{GatherAttributes, MatMulAttributes, quantized_gather, quantized_matmul};

    #[derive(Deserialize)]
    struct Named {
        name: String,
    }

    fn check<A>(text: &str, name: &str, inputs: &[&str], rust: &[AttributeSpec<A>], gather: bool) {
        let yaml: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
        let names = |key: &str| -> Vec<String> {
            let named: Vec<Named> = serde_yaml::from_value(yaml[key].clone()).unwrap();
            named.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!((yaml["name"].as_str(), yaml["version"].as_u64()), (Some(name), Some(VERSION.into())));
        let domains: Vec<String> = serde_yaml::from_value(yaml["domains"].clone()).unwrap();
        assert_eq!(
            (domains, names("outputs")),
            (quantized_matmul::DOMAINS.map(str::to_owned).to_vec(), vec!["y".into()])
        );
        assert_eq!(names("inputs"), inputs);
        assert_eq!(names("attributes"), rust.iter().map(|spec| spec.name).collect::<Vec<_>>());
        // Inputs of a gather are "as in" the product.
        if !gather {
            optional_agrees(&serde_yaml::from_value::<Vec<Operand>>(yaml["inputs"].clone()).unwrap());
            let attributes: Vec<Attribute> = serde_yaml::from_value(yaml["attributes"].clone()).unwrap();
            attributes_agree(attributes.iter(), rust, &[]);
        }
    }
    let [matmul, gather] = [quantized_matmul::INPUTS.as_slice(), &quantized_gather::INPUTS];
    check(quantized_matmul::SCHEMA, quantized_matmul::NAME, matmul, &MatMulAttributes::SPEC, false);
    check(quantized_gather::SCHEMA, quantized_gather::NAME, gather, &GatherAttributes::SPEC, true);
    for (gather, matmul) in GatherAttributes::SPEC.iter().zip(&MatMulAttributes::SPEC) {
        let range = (matmul.default, matmul.min, matmul.max, matmul.one_of);
        assert_eq!((gather.default, gather.min, gather.max, gather.one_of), range, "{}", gather.name);
    }
}

/// A node may leave out the same inputs.
fn optional_agrees(inputs: &[Operand]) {
    for input in inputs {
        assert_eq!(input.optional, OperatorKind::is_optional(&input.name), "{}", input.name);
    }
}

fn operator_agrees(yaml: &Operator, inputs: &[&str], outputs: &[&str]) {
    assert_eq!(yaml.domains, DOMAINS, "{}", yaml.name);
    assert_eq!(yaml.version, VERSION, "{}", yaml.name);
    assert_eq!(yaml.inputs.iter().map(|input| &*input.name).collect::<Vec<_>>(), inputs);
    optional_agrees(&yaml.inputs);
    assert_eq!(yaml.outputs.iter().map(|output| &*output.name).collect::<Vec<_>>(), outputs);
    assert_eq!(yaml.types["T1"].iter().map(|name| element(name)).collect::<Vec<_>>(), multi_head_attention::T1);
}
