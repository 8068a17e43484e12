//! When a tier that fails is asked again.

use std::time::{Duration, Instant};

/// So many failures in a row, and the tier is left alone.
const FAILURES: u32 = 3;
/// For so long at first; each failure of the one call that is tried then doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The most doublings.
const DOUBLINGS: u32 = 6;

/// Leaves a tier alone for a while after failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    until: Option<Instant>,
}

impl Breaker {
    /// The time for which the tier is still to be left alone.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        self.until.and_then(|until| until.checked_duration_since(now)).filter(|pause| !pause.is_zero())
    }

    /// Notes how a call has ended.
    pub(crate) fn record(&mut self, success: bool, now: Instant) {
        if success {
            *self = Self::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if let Some(doublings) = self.failures.checked_sub(FAILURES) {
            self.until = Some(now + FIRST_PAUSE * 2u32.pow(doublings.min(DOUBLINGS)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_call_succeeds() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..2 {
            breaker.record(false, now);
            assert_eq!(breaker.pause(now), None);
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            breaker.record(false, now);
            assert_eq!(breaker.pause(now), Some(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(breaker.pause(now), None);
        }
        breaker.record(true, now);
        breaker.record(false, now);
        assert_eq!(breaker.pause(now), None);
    }
}
