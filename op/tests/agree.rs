//! Every backend gives the reference's bits on random calls of every kind.

#[path = "common/backends.rs"]
mod backends;
#[path = "common/random.rs"]
mod random;

use kvcache_op::{Backend, Rayon, Serial, Workers};
use proptest::prelude::*;
use random::{After, RandomCall, calls};

fn run(call: &RandomCall, backend: Backend, workers: &dyn Workers) -> After {
    call.run(backend, |call, outputs| call.run(outputs, workers).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn small_calls_agree(call in calls(12, 12)) {
        let reference = run(&call, Backend::Reference, &Serial);
        for backend in backends::backends() {
            prop_assert!(run(&call, backend, &Serial) == reference, "{backend:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The work is split, whatever it is.
    #[test]
    fn large_calls_agree_on_several_threads(call in calls(80, 400)) {
        let reference = run(&call, Backend::Reference, &Serial);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for backend in backends::backends() {
            let backend = match backend {
                Backend::Cpu(cpu) => Backend::Cpu(cpu.with_parallel_bytes(0)),
                other => other,
            };
            let result = pool.install(|| run(&call, backend, &Rayon));
            prop_assert!(result == reference, "{backend:?}");
        }
    }
}
