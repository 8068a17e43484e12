//! Calls of `QuantizedMatMul` and `QuantizedGather` with any attributes, shapes and contents, on memory of exactly
//! their size. A check does not panic or overflow; what it accepts has the same bits on every kernel, with workers that
//! take tasks in any order.

use kvcache_conformance::backends::{read, write};
use kvcache_conformance::random::Unstructured;
use kvcache_conformance::{Tensor, Tensors};
use kvcache_op::schema::OperatorKind;
use kvcache_op::{Backends, ElementType, Error, MatMulBackend, Operator};
use kvcache_testing::backends::Careless;

const ATTRIBUTES: [&str; 6] = ["N", "K", "bits", "block_size", "activation_bits", "gate"];

/// A tensor of this shape, or now and then of another; of any bytes, floats mostly ordinary numbers.
fn drawn(element: ElementType, mut shape: Vec<usize>, u: &mut Unstructured) -> Tensor {
    if u.one_in(40) {
        match u.below(3) {
            0 => drop(shape.pop()),
            1 => shape.push(u.below(3)),
            _ => shape.iter_mut().for_each(|length| *length = (*length + u.below(3)).saturating_sub(1)),
        }
    }
    let mut word = || match element {
        ElementType::Float32 if !u.one_in(50) => {
            let pair = [u.unit(), u.unit()].map(|x| u64::from((x as f32 - 0.5).to_bits()));
            pair[0] << 32 | pair[1]
        }
        ElementType::Int64 if !u.one_in(50) => u.below(8) as u64,
        _ => u.next(),
    };
    let mut tensor = Tensor::zeros(element, shape).expect("a small tensor");
    tensor.bytes_mut().chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&word().to_le_bytes()[..bytes.len()]));
    tensor
}

/// The bytes of the output of a call, or why it is refused. An operator takes the attributes and inputs that it has.
fn call(kind: OperatorKind, attributes: [i64; 6], inputs: &Tensors, matmul: MatMulBackend) -> Result<Vec<u8>, Error> {
    let operator = Operator::new(kind, |given| {
        ATTRIBUTES.into_iter().zip(attributes).for_each(|(name, value)| _ = given.set(name, value));
        Ok::<_, Error>(())
    })?;
    let operator = operator.with_backends(Backends { matmul, ..Backends::default() });
    let operands = kind.inputs().iter().map(|name| inputs.get(name).map(|tensor| read(tensor).into()));
    let call = operator.check(operands.collect())?;
    let mut y = Tensor::zeros(ElementType::Float32, call.output_shape().to_vec()).expect("a small output");
    call.run([write(&mut y)], &Careless(3))?;
    Ok(y.bytes().to_vec())
}

pub fn run(bytes: &[u8]) {
    let u = &mut Unstructured::bytes(bytes);
    let [n, k, bits, block_size] = [u.within(1, 40), u.within(1, 100), u.pick(&[4, 8]), u.pick(&[16, 32])];
    let mut attributes = [n, k, bits, block_size, u.pick(&[8, 16]), u.below(3)].map(|value| value as i64);
    let columns = if attributes[5] == 0 { k } else { 2 * k };
    if u.one_in(20) {
        attributes[u.below(6)] = u.pick(&[0, -1, 3, 12, 33, 1 << 40, i64::MAX, i64::MIN]);
    }
    let (panels, blocks) = (n.div_ceil(16), k.div_ceil(block_size));
    let mut inputs = Tensors::from([
        ("panels", drawn(ElementType::UInt8, vec![panels, blocks, 2 * bits * block_size], u)),
        ("scales", drawn(ElementType::Float32, vec![panels, blocks, 16], u)),
        ("minima", drawn(ElementType::Float32, vec![panels, blocks, 16], u)),
    ]);
    let rows = u.below(30);
    inputs.extend([
        ("x", drawn(ElementType::Float32, vec![rows, columns], u)),
        ("bias", drawn(ElementType::Float32, vec![n], u)),
    ]);
    let indices = vec![u.below(5)];
    inputs.insert("indices", drawn(ElementType::Int64, indices, u));
    for optional in ["minima", "bias"] {
        if !u.one_in(2) {
            inputs.remove(optional);
        }
    }
    let mut expected = None;
    for backend in MatMulBackend::all() {
        let found = [OperatorKind::QuantizedMatMul, OperatorKind::QuantizedGather]
            .map(|kind| call(kind, attributes, &inputs, backend).map_err(|error| error.to_string()));
        assert_eq!(expected.get_or_insert(found.clone()), &found, "{}", backend.name());
    }
}
