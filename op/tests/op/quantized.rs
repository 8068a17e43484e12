//! `QuantizedMatMul` and `QuantizedGather`: every golden case on every kernel, bit for bit; what no case can hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kvcache_op::{
    Backends, ElementType, Error, MatMulAttributes, MatMulBackend, MatMulInputs, MatrixInputs, Operator,
    QuantizedMatMul, Rayon, Serial, TensorRef, Workers,
};
use kvcache_schema::{OperatorKind, quantized_gather, quantized_matmul};
use ndarray::{Array1, Array2, Array3, ArrayD};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    #[expect(dead_code, reason = "for readers")]
    about: String,
    rules: BTreeSet<String>,
    operator: String,
    attributes: BTreeMap<String, i64>,
    error: Option<String>,
    mentions: Option<Vec<String>>,
}

/// The operator of a case on its inputs, with this kernel.
fn run(
    case: &About,
    tensors: &SafeTensors<'_>,
    backend: MatMulBackend,
    workers: &dyn Workers,
) -> Result<Vec<u32>, Error> {
    let given = |name: &str| -> Option<TensorRef<'_>> {
        let view = tensors.tensor(name).ok()?;
        let element = match view.dtype() {
            Dtype::F32 => ElementType::Float32,
            Dtype::U8 => ElementType::UInt8,
            Dtype::I64 => ElementType::Int64,
            other => panic!("{name} is of {other:?}"),
        };
        // SAFETY: the file has a tensor of this type and shape here, in memory that outlives the call.
        Some(unsafe { TensorRef::from_raw_parts(element, view.shape(), view.data().as_ptr()) })
    };
    let kind = OperatorKind::ALL.into_iter().find(|kind| kind.name() == case.operator).unwrap();
    let operator = Operator::new(kind, |attributes| {
        assert!(case.attributes.iter().all(|(name, &value)| attributes.set(name, value)));
        Ok::<_, Error>(())
    })?;
    let operator = operator.with_backends(Backends { matmul: backend, ..Backends::default() });
    let operands = kind.inputs().iter().map(|name| given(name).map(Into::into)).collect();
    let [y]: [ArrayD<f32>; 1] = operator.check(operands)?.run_alloc(workers)?;
    if let Ok(expected) = tensors.tensor("y") {
        assert_eq!(y.shape(), expected.shape());
    }
    Ok(y.iter().map(|y| y.to_bits()).collect())
}

#[test]
fn every_golden_case_on_every_kernel() {
    #[derive(Deserialize)]
    struct Rule {
        id: String,
        not_proven_by_cases: Option<String>,
    }
    #[derive(Deserialize)]
    struct Rules {
        rules: Vec<Rule>,
    }
    let mut proven: BTreeSet<(String, String)> = BTreeSet::new();
    let folder = format!("{}/../golden/quantized_cases", env!("CARGO_MANIFEST_DIR"));
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        // What a case has is aligned for int64 in a `Vec` of these.
        let bytes = fs::read(&path).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let case = &metadata.metadata().as_ref().unwrap()["case"];
        let case: About = serde_yaml::from_str(case).unwrap();
        proven.extend(case.rules.iter().map(|rule| (case.operator.clone(), rule.clone())));
        for backend in MatMulBackend::all() {
            let at = format!("{} on {}", path.display(), backend.name());
            for workers in [&Serial as &dyn Workers, &Rayon] {
                match (run(&case, &tensors, backend, workers), &case.error) {
                    (Ok(y), None) => {
                        let expected = tensors.tensor("y").unwrap();
                        let expected =
                            expected.data().chunks_exact(4).map(|y| u32::from_le_bytes(y.try_into().unwrap()));
                        assert_eq!(y, expected.collect::<Vec<_>>(), "{at}");
                    }
                    (Err(error), Some(kind)) => {
                        assert_eq!(error.kind(), kind, "{at}: {error}");
                        for mention in case.mentions.as_ref().unwrap() {
                            assert!(error.to_string().contains(mention), "{at}: {error}");
                        }
                    }
                    (got, expected) => panic!("{at}: expected {expected:?}, got {:?}", got.map(|_| "y")),
                }
            }
        }
    }
    let own: Rules = serde_yaml::from_str(quantized_matmul::SCHEMA).unwrap();
    let gather: Rules = serde_yaml::from_str(quantized_gather::SCHEMA).unwrap();
    for (operator, Rule { id, not_proven_by_cases }) in own
        .rules
        .iter()
        .map(|rule| (quantized_matmul::NAME, rule))
        .chain(gather.rules.iter().map(|rule| (quantized_gather::NAME, rule)))
    {
        let origin = own.rules.iter().find(|rule| rule.id == *id).filter(|_| operator == quantized_gather::NAME);
        let not_proven = not_proven_by_cases.as_ref().or(origin.and_then(|rule| rule.not_proven_by_cases.as_ref()));
        let is_proven = proven.remove(&(operator.to_owned(), id.clone()));
        assert_eq!(is_proven, not_proven.is_none(), "{operator}: {id}");
    }
    assert!(proven.is_empty(), "no rules: {proven:?}");
}

/// Types, gaps, and an output that is another tensor of the call.
#[test]
fn what_no_case_holds_is_refused() {
    let attributes = MatMulAttributes { N: 16, K: 16, bits: 8, block_size: 16, activation_bits: 8, gate: 0 };
    let operator = QuantizedMatMul::new(attributes).unwrap();
    let (panels, scales) = (Array3::<u8>::zeros((1, 1, 256)), Array3::<f32>::ones((1, 1, 16)));
    let mut x = Array2::<f32>::ones((16, 16));
    let matrix = MatrixInputs { panels: (&panels).into(), scales: (&scales).into(), minima: None };
    let check = |x: TensorRef<'_>, matrix| operator.check(&MatMulInputs { x, matrix, bias: None }).map(drop);
    let halves = Array2::<half::f16>::from_elem((16, 16), half::f16::ONE);
    let refused = check((&halves).into(), matrix.clone()).unwrap_err();
    assert!(matches!(refused, Error::TypeMismatch { input: "x", got: ElementType::Float16, .. }), "{refused}");
    let refused = check((&x).into(), MatrixInputs { panels: (&scales).into(), ..matrix.clone() }).unwrap_err();
    assert!(matches!(refused, Error::TypeMismatch { input: "panels", expected: ElementType::UInt8, .. }), "{refused}");
    let refused = check((&x.t()).into(), matrix.clone()).unwrap_err();
    assert!(matches!(refused, Error::NotContiguous { input: "x", .. }), "{refused}");
    let bytes = Array1::<u8>::zeros(4 * 16 * 16 + 1);
    // SAFETY: the memory has that many bytes from any of its first two addresses.
    let misaligned = |by: usize| unsafe {
        TensorRef::from_raw_parts(ElementType::Float32, [16, 16], bytes.as_ptr().wrapping_add(by))
    };
    let by = usize::from(bytes.as_ptr().addr().is_multiple_of(4));
    let refused = check(misaligned(by), matrix.clone()).unwrap_err();
    assert!(matches!(refused, Error::Misaligned { input: "x", expected: 4, .. }), "{refused}");
    // SAFETY: what is read and written is one array, of which the call is refused.
    let (read, written) = unsafe {
        let data = x.as_mut_ptr().cast::<u8>();
        let read = TensorRef::from_raw_parts(ElementType::Float32, [16, 16], data);
        (read, kvcache_op::TensorMut::from_raw_parts(ElementType::Float32, [16, 16], data))
    };
    let call = operator.check(&MatMulInputs { x: read, matrix, bias: None }).unwrap();
    assert_eq!(call.output_shape(), [16, 16]);
    let refused = call.run([written], &Serial).unwrap_err();
    assert_eq!(refused, Error::OperandsOverlap { input: "y", other: "x" });
}
