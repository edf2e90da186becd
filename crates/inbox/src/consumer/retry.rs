//! Delays between attempts: doubled, capped, jittered.

use std::time::Duration;

/// Delays between attempts: doubled from `first` up to `max`, each spread by `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// After the first failure.
    pub first: Duration,
    /// The cap, before jitter.
    pub max: Duration,
    /// The spread, as a share of the delay, from 0 to 1: 0.2 is up to a fifth more or less.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(30), jitter: 0.2 }
    }
}

/// No delay is shorter, whatever the settings say: it would be a hot loop.
const SHORTEST: Duration = Duration::from_millis(10);

impl Retry {
    /// How long to wait after so many failures.
    pub(super) fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let delay = self.first.saturating_mul(1 << doublings).min(self.max);
        let spread = self.jitter.clamp(0.0, 1.0) * (2.0 * fastrand::f64() - 1.0);
        Duration::try_from_secs_f64(delay.as_secs_f64() * (1.0 + spread)).unwrap_or(delay).max(SHORTEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_within_their_jitter() {
        let retry = Retry { max: Duration::from_secs(1), ..Retry::default() };
        for (failures, expected) in [(1, 100), (2, 200), (4, 800), (5, 1000), (1_000_000, 1000)] {
            let delay = retry.delay(failures).as_millis();
            assert!((expected * 8 / 10..=expected * 12 / 10).contains(&delay), "{failures}: {delay}");
        }
    }

    #[test]
    fn no_setting_makes_a_hot_loop_or_a_panic() {
        for jitter in [0.0, -1.0, 7.0, f64::NAN, f64::INFINITY] {
            for delay in [Duration::ZERO, Duration::MAX] {
                let retry = Retry { first: delay, max: delay, jitter };
                assert!(retry.delay(1) >= SHORTEST && retry.delay(u32::MAX) >= SHORTEST, "{retry:?}");
            }
        }
    }
}
