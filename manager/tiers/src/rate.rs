//! Whether a tier gives blocks faster than their rows are computed.

use std::time::Duration;

/// A rate is known after that many measurements.
const SAMPLES: u32 = 4;
/// The part of the newest measurement in the average.
const WEIGHT: f64 = 0.25;
/// A tier that was slower is measured again once in that many questions.
const TRY_AGAIN: u32 = 32;

/// The measured rate of a tier's reads.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    bytes_per_second: f64,
    samples: u32,
    refused: u32,
}

impl Rate {
    /// Adds a measurement.
    pub(crate) fn record(&mut self, nbytes: u64, elapsed: Duration) {
        let sample = nbytes as f64 / elapsed.as_secs_f64().max(1e-9);
        let weight = if self.samples == 0 { 1.0 } else { WEIGHT };
        self.bytes_per_second += weight * (sample - self.bytes_per_second);
        self.samples = self.samples.saturating_add(1);
    }

    /// In bytes per second, once it is known.
    pub(crate) fn get(&self) -> Option<f64> {
        (self.samples >= SAMPLES).then_some(self.bytes_per_second)
    }

    /// Whether the tier is not to be asked, since computing gives this many bytes of rows a second and it gives fewer.
    pub(crate) fn is_slower(&mut self, compute: f64) -> bool {
        if !self.get().is_some_and(|rate| rate < compute) {
            return false;
        }
        self.refused = (self.refused + 1) % TRY_AGAIN;
        self.refused != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_tier_is_asked_now_and_then_and_again_once_it_is_faster() {
        let mut rate = Rate::default();
        for _ in 0..SAMPLES {
            assert_eq!((rate.get(), rate.is_slower(1e9)), (None, false));
            rate.record(1000, Duration::from_secs(1));
        }
        assert_eq!((rate.get(), rate.is_slower(1000.0), rate.is_slower(0.0)), (Some(1000.0), false, false));
        let asked = (0..10 * TRY_AGAIN).filter(|_| !rate.is_slower(1001.0)).count();
        assert_eq!(asked, 10);
        rate.record(5000, Duration::from_secs(1));
        assert_eq!((rate.get(), rate.is_slower(1001.0)), (Some(2000.0), false));
    }
}
