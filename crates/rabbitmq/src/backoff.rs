//! Delays between attempts to connect: capped, jittered, seeded.

use std::time::Duration;

use fastrand::Rng;

use crate::settings::Backoff;

/// Where a series of failed attempts stands.
#[derive(Debug)]
pub(crate) struct Delays {
    settings: Backoff,
    rng: Rng,
    next: Duration,
}

impl Delays {
    pub(crate) fn new(settings: Backoff, seed: u64) -> Self {
        Self { settings, rng: Rng::with_seed(seed), next: settings.first }
    }

    /// The delay before the next attempt; the one after it is twice as long, up to the cap.
    pub(crate) fn next(&mut self) -> Duration {
        let delay = self.next.min(self.settings.max);
        self.next = (delay * 2).min(self.settings.max);
        let spread = self.settings.jitter * (2.0 * self.rng.f64() - 1.0);
        delay.mul_f64((1.0 + spread).max(0.0))
    }

    /// An attempt succeeded: the next series begins with the first delay.
    pub(crate) fn reset(&mut self) {
        self.next = self.settings.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_within_their_jitter() {
        let settings =
            Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1), jitter: 0.2 };
        let mut delays = Delays::new(settings, 7);
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let delay = delays.next().as_millis();
            assert!((expected * 8 / 10..=expected * 12 / 10).contains(&delay), "{delay} for {expected}");
        }
        delays.reset();
        assert!(delays.next() <= Duration::from_millis(120));
    }
}
