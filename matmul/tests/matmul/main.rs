//! Every instruction set gives the reference's bits, on memory between guard pages; a row's bits are the same alone and
//! in any batch, on any number of threads.

mod drawn;

use std::mem::MaybeUninit;

use drawn::Drawn;
use kvcache_conformance::random::Unstructured;
use kvcache_kernels::{InstructionSet, Serial, Workers};
use kvcache_matmul::{
    Activations, Gate, MatmulCpu, MatmulKernel, MatmulReference, Matrix, MatrixShape, Product, pack, pack_columns,
};
use kvcache_testing::backends::{Careless, Threads};
use kvcache_testing::guarded::Guard;
use proptest::prelude::*;

/// The fast kernel on each instruction set of this machine; all products are split among threads.
fn fast() -> impl Iterator<Item = MatmulCpu> {
    InstructionSet::ALL.into_iter().filter_map(MatmulCpu::with_instructions).map(|kernel| kernel.with_parallel_work(0))
}

/// Matrices of every form, and activations.
fn forms() -> impl Iterator<Item = (usize, usize, Activations)> {
    let sizes = [4, 8].into_iter().flat_map(|bits| [16, 32].map(|block_size| (bits, block_size)));
    sizes.flat_map(|(bits, block_size)| Activations::ALL.map(|activations| (bits, block_size, activations)))
}

/// The bits of y, of every instruction set the reference's.
fn check(drawn: &Drawn, workers: &dyn Workers) -> Vec<u32> {
    let expected = drawn.multiply(&MatmulReference, &Serial);
    for kernel in fast() {
        let got = drawn.multiply(&kernel, workers);
        let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        assert_eq!(differs.map(|i| (i, got[i], expected[i])), None, "{} {drawn:?}", kernel.name());
    }
    expected
}

#[test]
fn every_number_of_rows_around_the_tiles() {
    let rows = (0..=14).chain([16, 17, 23, 24, 25, 36, 37, 48, 64, 100, 129, 200, 600]);
    for (seed, rows) in (0..).zip(rows) {
        for (bits, block_size, activations) in forms() {
            let mut entropy = Unstructured::seed(seed);
            let shape = MatrixShape { n: entropy.within(1, 40), k: entropy.within(1, 100), bits, block_size };
            check(&Drawn::new(&mut entropy, shape, activations, rows), &Threads(2));
        }
    }
}

/// More rows than are quantized at once, and more blocks than are unpacked at once.
#[test]
fn rows_beyond_the_memory_for_them() {
    for (bits, activations) in [(4, Activations::Int8), (8, Activations::Int16)] {
        let shape = MatrixShape { n: 40, k: 2000, bits, block_size: 32 };
        check(&Drawn::new(&mut Unstructured::seed(7), shape, activations, 250), &Threads(2));
    }
}

/// Rows of more elements than are gated at once.
#[test]
fn gated_rows_of_several_parts() {
    let shape = MatrixShape { n: 17, k: 1100, bits: 4, block_size: 32 };
    for gate in [Gate::Silu, Gate::Gelu] {
        let gated = |seed| Drawn::new(&mut Unstructured::seed(seed), shape, Activations::Int16, 3);
        let drawn = (0..).map(gated).find(|drawn| drawn.gate == gate).expect("seeds do not end");
        check(&drawn, &Serial);
    }
}

/// The largest sums that there are.
#[test]
fn codes_and_activations_at_their_limits() {
    for (bits, block_size, activations) in forms() {
        let shape = MatrixShape { n: 16, k: block_size, bits, block_size };
        for code in [0, (1 << bits) - 1] {
            for x in [1.0, -1.0] {
                let panels = pack(&shape, &vec![code as u8; shape.n * shape.k]);
                let scales = pack_columns(&shape, &vec![1.0; shape.n]);
                for minima in [None, Some(&scales[..])] {
                    let matrix = Matrix::new(shape, &panels, &scales, minima);
                    let drawn = Drawn::of(&matrix, activations, &vec![x; 13 * shape.k], None, Guard::Behind);
                    let zero_point = if minima.is_some() { 0 } else { 1 << (bits - 1) };
                    let weight = (code - zero_point) as f32 + if minima.is_some() { 1.0 } else { 0.0 };
                    let expected = x * weight * block_size as f32;
                    let y = check(&drawn, &Serial);
                    assert!(y.iter().all(|&y| (f32::from_bits(y) - expected).abs() <= 1e-3 * expected.abs()));
                }
            }
        }
    }
}

/// The reference is the product that it quantizes, and float32 rows that are not finite are NaN in all columns.
#[test]
fn the_reference_is_close_to_the_product() {
    let mut entropy = Unstructured::seed(3);
    for (bits, block_size, activations) in forms() {
        let shape = MatrixShape { n: 20, k: 70, bits, block_size };
        let codes: Vec<u8> = (0..shape.n * shape.k).map(|_| entropy.below(1 << bits) as u8).collect();
        let mut floats = |len: usize| (0..len).map(|_| entropy.unit() as f32 - 0.5).collect::<Vec<_>>();
        let of_blocks = shape.n * shape.blocks();
        let (scales, minima, x, bias) = (floats(of_blocks), floats(of_blocks), floats(3 * shape.k), floats(shape.n));
        let (panels, packed) = (pack(&shape, &codes), [&scales, &minima].map(|values| pack_columns(&shape, values)));
        let mut x = x;
        x[2 * shape.k + 69] = f32::NEG_INFINITY;
        for has_minima in [false, true] {
            let matrix = Matrix::new(shape, &panels, &packed[0], has_minima.then_some(&packed[1][..]));
            let y = check(&Drawn::of(&matrix, activations, &x, Some(&bias), Guard::Before), &Threads(3));
            for (i, y) in y.iter().enumerate() {
                let (row, n) = (i / shape.n, i % shape.n);
                if row == 2 {
                    assert_eq!(*y, 0x7fc0_0000, "{shape:?}");
                    continue;
                }
                let weight = |k: usize| {
                    let (code, at) = (f64::from(codes[n * shape.k + k]), n * shape.blocks() + k / block_size);
                    match has_minima {
                        true => f64::from(scales[at]) * code + f64::from(minima[at]),
                        false => f64::from(scales[at]) * (code - f64::from(1 << (bits - 1))),
                    }
                };
                let terms = (0..shape.k).map(|k| f64::from(x[row * shape.k + k]) * weight(k));
                let (exact, size) =
                    terms.fold((f64::from(bias[n]), 1.0), |(sum, size), term| (sum + term, size + term.abs()));
                let unit = if activations == Activations::Int8 { 127.0 } else { 32767.0 };
                let error = (f64::from(f32::from_bits(*y)) - exact).abs();
                assert!(error <= size * (3.0 / unit + 1e-5), "{shape:?} {activations:?}: {error} of {size}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn instruction_sets_equal_the_reference(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let drawn = Drawn::draw(&mut entropy, 30);
        check(&drawn, &Careless(entropy.within(1, 4)));
    }

    /// Alone, and among others on one to three threads.
    #[test]
    fn a_row_does_not_see_the_batch(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let drawn = Drawn::draw(&mut entropy, 60);
        for kernel in fast() {
            let rows = drawn.multiply(&kernel, &Threads(entropy.within(1, 3)));
            for row in 0..drawn.rows() {
                let n = drawn.shape().n;
                prop_assert!(drawn.row(row).multiply(&kernel, &Serial) == rows[row * n..(row + 1) * n], "row {}", row);
            }
        }
    }

    #[test]
    fn gathered_columns_are_the_reference_s(seed: u64) {
        let mut entropy = Unstructured::seed(seed);
        let drawn = Drawn::draw(&mut entropy, 1);
        let indices: Vec<_> = (0..entropy.below(40)).map(|_| entropy.below(drawn.shape().n) as i64).collect();
        let expected = drawn.gather(&MatmulReference, &indices, &Serial);
        for kernel in fast() {
            prop_assert!(drawn.gather(&kernel, &indices, &Threads(2)) == expected, "{} {:?}", kernel.name(), drawn);
        }
    }
}

fn fails<T>(work: impl Fn() -> T) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

#[test]
fn what_does_not_fit_is_not_accepted() {
    let shape = MatrixShape { n: 3, k: 20, bits: 4, block_size: 16 };
    let (panels, scales) = (vec![0; 2 * shape.block_bytes()], vec![0.0; 2 * 16]);
    let matrix = Matrix::new(shape, &panels, &scales, None);
    assert!(fails(|| Matrix::new(shape, &panels[1..], &scales, None)));
    assert!(fails(|| Matrix::new(shape, &panels, &scales[1..], None)));
    assert!(fails(|| Matrix::new(shape, &panels, &scales, Some(&scales[1..]))));
    for wrong in [(0, 20, 4, 16), (3, 0, 4, 16), (3, 20, 5, 16), (3, 20, 4, 8), (usize::MAX, usize::MAX, 8, 32)] {
        let (n, k, bits, block_size) = wrong;
        assert!(fails(|| Matrix::new(MatrixShape { n, k, bits, block_size }, &panels, &scales, None)));
    }
    assert!(fails(|| Product::new(matrix, Activations::Int8, Gate::None, &[0.0; 19], None)));
    assert!(fails(|| Product::new(matrix, Activations::Int8, Gate::None, &[0.0; 20], Some(&[0.0; 2]))));
    assert!(fails(|| Product::new(matrix, Activations::Int8, Gate::Silu, &[0.0; 20], None)));
    let product = Product::new(matrix, Activations::Int8, Gate::None, &[0.0; 20], None);
    let kernels = fast().map(|kernel| Box::new(kernel) as Box<dyn MatmulKernel>);
    for kernel in kernels.chain([Box::new(MatmulReference) as _]) {
        let multiply = |len: usize| kernel.multiply(&product, &mut vec![MaybeUninit::uninit(); len], &Serial);
        assert!(fails(|| multiply(2)) && fails(|| multiply(4)) && !fails(|| multiply(3)));
        let gather = |index| kernel.gather(&matrix, &[index], &mut [MaybeUninit::uninit(); 20], &Serial);
        assert!(fails(|| gather(-1)) && fails(|| gather(3)) && !fails(|| gather(2)));
    }
}
