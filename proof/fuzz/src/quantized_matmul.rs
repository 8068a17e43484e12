//! Calls of `QuantizedMatMul` and `QuantizedGather` with any attributes, shapes and contents, on memory of exactly
//! their size. A check does not panic or overflow; what it accepts has the same bits on every kernel, with workers that
//! take tasks in any order.

use kvcache_conformance::Tensor;
use kvcache_conformance::backends::write;
use kvcache_conformance::random::Unstructured;
use kvcache_op::{
    Checked, ElementType, GatherAttributes, GatherInputs, MatMulAttributes, MatMulBackend, MatMulInputs, MatrixInputs,
    QuantizedGather, QuantizedMatMul, TensorRef,
};
use kvcache_testing::backends::Careless;

/// A tensor and its memory.
struct Drawn {
    element: ElementType,
    shape: Vec<usize>,
    words: Vec<u64>,
}

impl Drawn {
    /// One of this shape, or now and then of another; of any bytes, floats mostly ordinary numbers.
    fn new(element: ElementType, mut shape: Vec<usize>, u: &mut Unstructured) -> Self {
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
        let words = (0..element.byte_len(shape.iter().product()).div_ceil(8)).map(|_| word()).collect();
        Self { element, shape, words }
    }

    fn tensor(&self) -> TensorRef<'_> {
        // SAFETY: the memory has as many bytes as the type and shape say, rounded up, is aligned to 8 bytes, and lives
        // as long as the borrow; any bytes are numbers.
        unsafe { TensorRef::from_raw_parts(self.element, &*self.shape, self.words.as_ptr().cast()) }
    }
}

#[expect(non_snake_case, reason = "the names of attributes")]
pub fn run(bytes: &[u8]) {
    let u = &mut Unstructured::bytes(bytes);
    let [n, k, bits, block_size] = [u.within(1, 40), u.within(1, 100), u.pick(&[4, 8]), u.pick(&[16, 32])];
    let mut attributes = [n, k, bits, block_size, u.pick(&[8, 16]), u.below(3)].map(|value| value as i64);
    let columns = if attributes[5] == 0 { k } else { 2 * k };
    if u.one_in(20) {
        attributes[u.below(6)] = u.pick(&[0, -1, 3, 12, 33, 1 << 40, i64::MAX, i64::MIN]);
    }
    let [N, K, bits_given, block_given, activation_bits, gate] = attributes;
    let (panels, blocks) = (n.div_ceil(16), k.div_ceil(block_size));
    let codes = Drawn::new(ElementType::UInt8, vec![panels, blocks, 2 * bits * block_size], u);
    let [scales, minima] = [(); 2].map(|()| Drawn::new(ElementType::Float32, vec![panels, blocks, 16], u));
    let rows = u.below(30);
    let x = Drawn::new(ElementType::Float32, vec![rows, columns], u);
    let bias = Drawn::new(ElementType::Float32, vec![n], u);
    let indices = Drawn::new(ElementType::Int64, vec![u.below(5)], u);
    let (has_minima, has_bias) = (u.one_in(2), u.one_in(2));
    let matrix =
        MatrixInputs { panels: codes.tensor(), scales: scales.tensor(), minima: has_minima.then(|| minima.tensor()) };
    let run = |call: Checked<'_>| {
        let mut y = Tensor::zeros(ElementType::Float32, call.output_shape().to_vec()).expect("a small output");
        call.run([write(&mut y)], &Careless(3)).map(|()| y)
    };
    let mut expected = None;
    for backend in MatMulBackend::all() {
        let attributes = MatMulAttributes { N, K, bits: bits_given, block_size: block_given, activation_bits, gate };
        let multiplied = QuantizedMatMul::new(attributes).and_then(|operator| {
            let bias = has_bias.then(|| bias.tensor());
            let inputs = MatMulInputs { x: x.tensor(), matrix: matrix.clone(), bias };
            run(operator.with_backend(backend).check(&inputs)?)
        });
        let gathered = QuantizedGather::new(GatherAttributes { N, K, bits: bits_given, block_size: block_given })
            .and_then(|operator| {
                let inputs = GatherInputs { indices: indices.tensor(), matrix: matrix.clone() };
                run(operator.with_backend(backend).check(&inputs)?)
            });
        let found = [multiplied, gathered].map(|y| match y {
            Ok(y) => Ok(y.bytes().to_vec()),
            Err(error) => Err(error.to_string()),
        });
        assert_eq!(expected.get_or_insert(found.clone()), &found, "{}", backend.name());
    }
}
