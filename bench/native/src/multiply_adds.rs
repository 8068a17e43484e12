//! The other roofline: fused multiply-adds of the widest registers, and nothing else.

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_arch = "aarch64")]
use kvcache_simd::Neon;
#[cfg(target_arch = "x86_64")]
use kvcache_simd::{Avx2, Avx512};
use kvcache_simd::{Function, InstructionSet, MOST_LANES, Portable, Simd};
use pyo3::prelude::*;

use crate::calls::Threads;
use crate::refused;

/// Registers that are summed up in turn: more than the multiply-adds that any processor has under way, and fewer than
/// the registers of AVX2.
const SUMS: usize = 12;

/// Multiply-adds on several threads.
#[pyclass(unsendable)]
pub(crate) struct MultiplyAdds {
    threads: Threads,
    count: usize,
}

#[pymethods]
impl MultiplyAdds {
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        Ok(Self { threads: Threads::new(threads)?, count: threads })
    }

    /// Makes so many multiply-adds of float32 on each thread, whole registers of all sums; gives how many all sums say
    /// they were, exactly up to 2^28 on a thread.
    fn run(&self, operations: u64) -> PyResult<u64> {
        let (lanes, sum) = match InstructionSet::best().of_floats() {
            InstructionSet::Portable => function::<Portable>(),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => function::<Neon>(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => function::<Avx2>(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => function::<Avx512<false>>(),
            other => return Err(refused(format!("no multiply-adds of {}", other.kernel_name()))),
        };
        let step = (SUMS * lanes) as u64;
        if !operations.is_multiple_of(step) {
            return Err(refused(format!("{operations} multiply-adds are not whole steps of {step}")));
        }
        let total = AtomicU64::new(0);
        self.threads.run(|workers| {
            workers.run(self.count, &|_| {
                // SAFETY: the machine has the instruction set.
                total.fetch_add(unsafe { sum(&(operations / step)) }, Ordering::Relaxed);
            });
        });
        Ok(total.into_inner())
    }
}

type Sum = unsafe fn(&u64) -> u64;

fn function<S: Simd>() -> (usize, Sum) {
    (S::LANES, S::outlined::<Sums<S>>())
}

/// Adds 1 * 1 to each lane of each sum in each step; the sum of all lanes.
struct Sums<S>(PhantomData<S>);

impl<S: Simd> Function<S> for Sums<S> {
    type Arguments<'a> = u64;
    type Output = u64;

    #[inline(always)]
    unsafe fn run(&steps: &u64) -> u64 {
        // SAFETY: the instruction set is enabled; an array has room for a register.
        unsafe {
            let one = S::splat(black_box(1.0));
            // Sums that begin alike would be one.
            let mut sums = [one; SUMS];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::splat(black_box(i as f32));
            }
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = S::mul_add(one, one, *sum);
                }
            }
            let mut total = 0;
            for (i, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; MOST_LANES];
                S::write_f32(lanes.as_mut_ptr(), sum);
                total += lanes[..S::LANES].iter().map(|&lane| lane as u64 - i as u64).sum::<u64>();
            }
            total
        }
    }
}
