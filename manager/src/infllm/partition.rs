//! The parts of a sequence: first tokens, blocks, and the rest.

use crate::error::Error;

/// The parts of a sequence, in order: its first tokens, blocks, and the rest, which ends with the local tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The first tokens, which attention always sees.
    pub init: usize,
    /// Whole blocks, some of which attention sees.
    pub blocks: usize,
    /// The tokens after the blocks, which attention always sees.
    pub rest: usize,
}

/// Divides `n` tokens. Those that leave the last `n_local` fill the first `n_init`; then, as long as the rest without a
/// block would have `n_local` tokens, a block forms.
///
/// # Errors
/// [`Error::Range`] for blocks of no tokens.
pub fn infllm_partition(n: usize, n_init: usize, n_local: usize, block: usize) -> Result<Partition, Error> {
    if block == 0 {
        return Err(Error::Range { name: "block", got: 0, min: 1, max: i64::MAX });
    }
    let init = n.saturating_sub(n_local).min(n_init);
    let blocks = (n - init).saturating_sub(n_local) / block;
    Ok(Partition { init, blocks, rest: n - init - blocks * block })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Token by token, as the authors do it.
        #[test]
        fn tokens_leave_the_window_one_by_one(
            n in 0_usize..300,
            n_init in 0_usize..20,
            n_local in 0_usize..40,
            block in 1_usize..9,
        ) {
            let (mut init, mut blocks, mut rest) = (0, 0, 0);
            for _ in 0..n {
                rest += 1;
                while rest > n_local && init < n_init {
                    (init, rest) = (init + 1, rest - 1);
                }
                while rest >= n_local + block {
                    (blocks, rest) = (blocks + 1, rest - block);
                }
            }
            prop_assert_eq!(infllm_partition(n, n_init, n_local, block)?, Partition { init, blocks, rest });
            prop_assert_eq!(init + blocks * block + rest, n);
        }
    }
    #[test]
    fn golden_g22() -> Result<(), Error> {
        let parts = |init, blocks, rest| Partition { init, blocks, rest };
        assert_eq!(infllm_partition(11, 2, 4, 2)?, parts(2, 2, 5));
        assert_eq!(infllm_partition(6000, 128, 4096, 128)?, parts(128, 13, 4208));
        assert_eq!(infllm_partition(1, 2, 4, 0).unwrap_err().kind(), "range");
        Ok(())
    }
}
