//! Products of random rows and matrices.

use std::mem::MaybeUninit;

use kvcache_conformance::random::Unstructured;
use kvcache_kernels::{InstructionSet, Serial};
use kvcache_matmul::{
    Activations, MatmulCpu, MatmulKernel, MatmulReference, Matrix, MatrixShape, Product, pack, pack_columns,
};

fn kernels() -> impl Iterator<Item = MatmulCpu> {
    InstructionSet::ALL.into_iter().filter_map(MatmulCpu::with_instructions)
}

fn bits(kernel: &dyn MatmulKernel, product: &Product) -> Vec<u32> {
    let mut y = vec![MaybeUninit::new(7.0); product.rows() * product.matrix().shape().n];
    kernel.multiply(product, &mut y, &Serial);
    // SAFETY: initialized above.
    y.into_iter().map(|y| unsafe { y.assume_init() }.to_bits()).collect()
}

#[test]
fn first() {
    let mut entropy = Unstructured::seed(1);
    for (bits_, block_size) in [(4, 16), (4, 32), (8, 16), (8, 32)] {
        let shape = MatrixShape { n: 37, k: 100, bits: bits_, block_size };
        let codes: Vec<u8> = (0..shape.n * shape.k).map(|_| entropy.below(1 << bits_) as u8).collect();
        let mut float = || entropy.below(20000) as f32 / 10000.0 - 1.0;
        let scales: Vec<f32> = (0..shape.n * shape.blocks()).map(|_| float()).collect();
        let minima: Vec<f32> = (0..shape.n * shape.blocks()).map(|_| float()).collect();
        let x: Vec<f32> = (0..25 * shape.k).map(|_| float()).collect();
        let (panels, scales, minima) =
            (pack(&shape, &codes), pack_columns(&shape, &scales), pack_columns(&shape, &minima));
        for minima in [None, Some(&minima[..])] {
            for activations in Activations::ALL {
                let matrix = Matrix::new(shape, &panels, &scales, minima);
                let product = Product::new(matrix, activations, &x, None);
                let expected = bits(&MatmulReference, &product);
                for kernel in kernels() {
                    assert_eq!(bits(&kernel, &product), expected, "{} {shape:?} {activations:?}", kernel.name());
                }
            }
        }
    }
}
