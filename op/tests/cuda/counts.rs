//! What launches cost in instructions, sectors and passes over banks: deterministic, and thus the benchmark while there
//! is no GPU. The table in bench/results/cuda.md has these figures.

use std::collections::BTreeMap;
use std::path::Path;

use kvcache_conformance::random::{Unstructured, index_inputs};
use kvcache_conformance::{Case, Expected, Implementation, Operator, Step, Tensor};
use kvcache_emulation_ptx::{Cost, Emulation};
use kvcache_op::ElementType;
use libtest_mimic::Failed;

use crate::call::CallOptions;
use crate::device::Gpu;
use crate::golden::{OnDevice, costs, launched};

/// Bounds with which sequences of several tokens are decoding steps, of several pieces.
pub const LARGE_BOUNDS: [i64; 2] = [1 << 40; 2];

/// Key heads, and elements of a head.
const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const KEYS: usize = 1024;
/// Elements that share a scale.
const GROUP: usize = 8;

/// Numbers between -1 and 1, or codes.
fn tensor(entropy: &mut Unstructured, element: ElementType, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let half =
        |entropy: &mut Unstructured| half::f16::from_f32(entropy.below(4001) as f32 / 2000.0 - 1.0).to_le_bytes();
    let bytes: Vec<u8> = match element {
        ElementType::Float16 => (0..count).flat_map(|_| half(entropy)).collect(),
        _ => (0..element.byte_len(count)).map(|_| entropy.next() as u8).collect(),
    };
    Tensor::new(element, shape.to_vec(), &bytes).expect("the bytes of its shape")
}

/// A call of one sequence of [`KEYS`] tokens, so many of them new. Without a cache its keys and values are packed.
pub fn case(operator: Operator, t2: ElementType, queries: usize, heads_per_key: usize) -> Case {
    let entropy = &mut Unstructured::seed(7);
    let quant_bit = if t2 == ElementType::Float16 { 0 } else { t2.bits() as i64 };
    let mut attributes = operator.attributes();
    let is_packed = operator == Operator::MultiHeadAttention;
    if !is_packed {
        attributes.extend([("quant_bit", quant_bit), ("quant_group", GROUP as i64), ("cache_layout", 3)]);
    }
    let mut set = |name, value: i64| attributes.insert(name, value);
    let (names, rows) = if is_packed { (["key", "value"], KEYS) } else { (["current_key", "current_value"], queries) };
    let mut inputs = index_inputs(&[(KEYS - queries, queries)]);
    inputs.extend(names.map(|name| (name, tensor(entropy, ElementType::Float16, &[rows, HEADS, HEAD_DIM]))));
    let one = |number: usize| Tensor::of_indices(&[number as i64], &[1]);
    if is_packed {
        inputs.remove("start_pos");
    } else {
        inputs.insert("cachestarts", one(0));
    }
    if operator != Operator::KeyValueCache {
        set("num_heads", (HEADS * heads_per_key) as i64);
        set("num_kv_heads", HEADS as i64);
        set("head_dim", HEAD_DIM as i64);
        let query = tensor(entropy, ElementType::Float16, &[queries, HEADS * heads_per_key, HEAD_DIM]);
        inputs.extend([("query", query), ("decoding_batches", one(usize::from(queries == 1)))]);
    }
    let scale = (quant_bit > 0).then(|| tensor(entropy, ElementType::Float16, &[1, 2, HEADS, KEYS, HEAD_DIM / GROUP]));
    Case {
        name: format!("{t2} {queries} {heads_per_key}"),
        folder: Path::new("").to_owned(),
        about: String::new(),
        rules: Vec::new(),
        operator,
        attributes,
        floats: operator.floats(),
        outputs: &[],
        any_nan: false,
        cache: (!is_packed).then(|| tensor(entropy, t2, &[1, 2, HEADS, KEYS, HEAD_DIM])),
        scale,
        steps: vec![Step { inputs, expected: Expected::Success(BTreeMap::new()) }],
    }
}

/// What each kernel costs in a call.
fn counted(case: &Case) -> Result<BTreeMap<String, Cost>, Failed> {
    let emulation = Emulation { multiprocessors: 132, counts: true, launched: Some(launched), ..Emulation::default() };
    let (gpu, bounds) = (&Gpu::emulated(&emulation)?, Some(LARGE_BOUNDS));
    costs().clear();
    OnDevice { gpu, options: CallOptions { bounds, ..CallOptions::default() } }.run(case)?;
    Ok(std::mem::take(&mut costs()))
}

/// The rows of the table: what is called, then the figures of a kernel.
fn rows() -> Result<Vec<(String, [f64; 5])>, Failed> {
    let mut rows = Vec::new();
    let mut add = |operator, t2: ElementType, queries: usize, heads_per_key: usize, about: &str| {
        for (kernel, cost) in counted(&case(operator, t2, queries, heads_per_key))? {
            let kernel = kernel.trim_start_matches("kvcache_").split("_f16").next().unwrap_or(&kernel);
            // Of the values that a store or a load moves; of the keys, values and scales that attention reads.
            let bytes = match kernel.split('_').next() {
                // `KeyValueCache` launches the same.
                Some("store") if operator != Operator::KeyValueCache => continue,
                Some("store") => 4 * queries * HEADS * HEAD_DIM,
                Some("load") => 4 * KEYS * HEADS * HEAD_DIM,
                _ if t2 == ElementType::Float16 => 4 * KEYS * HEADS * HEAD_DIM,
                _ => t2.byte_len(2 * KEYS * HEADS * HEAD_DIM) + 4 * KEYS * HEADS * HEAD_DIM / GROUP,
            };
            let total = cost.instructions as f64;
            let [sectors, ideal] = cost.sectors.map(|count| count as f64);
            let [passes, without] = cost.passes.map(|count| count as f64);
            let figures = [total, total / bytes as f64, sectors, sectors / ideal, passes / without.max(1.0)];
            rows.push((format!("{about}: `{kernel}`"), figures));
        }
        Ok::<_, Failed>(())
    };
    for t2 in [ElementType::Float16, ElementType::Int8, ElementType::Int4] {
        add(Operator::KeyValueCache, t2, 256, 1, &format!("256 of 1,024 tokens, {t2}"))?;
    }
    for (t2, heads) in [
        (ElementType::Float16, 1),
        (ElementType::Float16, 4),
        (ElementType::Float16, 8),
        (ElementType::Int8, 4),
        (ElementType::Int4, 4),
    ] {
        add(Operator::MultiHeadCacheAttention, t2, 1, heads, &format!("decode, {t2}, {heads} heads a key head"))?;
    }
    add(
        Operator::MultiHeadCacheAttention,
        ElementType::Float16,
        4,
        4,
        "4 of 1,024 tokens, float16, 4 heads a key head",
    )?;
    Ok(rows)
}

/// The committed table is right within 2 %: `make bench-cuda` prints it.
pub fn table(gpu: &Gpu) -> Result<(), Failed> {
    if !gpu.is_emulated()? {
        return Ok(());
    }
    let rows = rows()?;
    let table = rows.iter().map(|(about, [total, each, sectors, ideal, passes])| {
        format!("| {about} | {total:.0} | {each:.3} | {sectors:.0} | {ideal:.2} | {passes:.2} |")
    });
    let table: Vec<_> = table.collect();
    println!("{}", table.join("\n"));
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/results/cuda.md");
    let committed = std::fs::read_to_string(committed).expect("the table is there");
    for (about, figures) in &rows {
        let line = committed.lines().find(|line| line.starts_with(&format!("| {about} |"))).unwrap_or_default();
        let told: Vec<f64> = line.split('|').skip(2).filter_map(|cell| cell.trim().parse().ok()).collect();
        let near = |(told, figure): (&f64, &f64)| (told - figure).abs() <= 0.02 * figure + 0.005;
        let agrees = told.len() == figures.len() && told.iter().zip(figures).all(near);
        assert!(agrees, "bench/results/cuda.md has other figures than\n{}", table.join("\n"));
    }
    Ok(())
}
