//! How long an event waits before it is tried again.

use std::time::Duration;

/// Exponential backoff with factor 2, a cap and jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// No wait is longer, jitter aside.
    pub max: Duration,
    /// The share by which a wait may be longer or shorter, 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The wait after `failures` failures in a row, counted from 1.
    pub fn wait(&self, failures: u32, random: &mut fastrand::Rng) -> Duration {
        let factor = 2f64.powi(i32::try_from(failures.clamp(1, 64) - 1).unwrap_or(63));
        let wait = (self.first.as_secs_f64() * factor).min(self.max.as_secs_f64());
        let swing = 1.0 + self.jitter * (2.0 * random.f64() - 1.0);
        Duration::from_secs_f64((wait * swing).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_cap() {
        let backoff =
            Backoff { first: Duration::from_millis(100), max: Duration::from_secs(30), jitter: 0.0 };
        let mut random = fastrand::Rng::with_seed(1);
        let waits: Vec<_> = (1..=12).map(|n| backoff.wait(n, &mut random).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000]);
        assert_eq!(backoff.wait(u32::MAX, &mut random), Duration::from_secs(30));
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(9), jitter: 0.2 };
        let mut random = fastrand::Rng::with_seed(7);
        let waits: Vec<_> = (0..1000).map(|_| backoff.wait(1, &mut random).as_secs_f64()).collect();
        assert!(waits.iter().all(|wait| (0.8..=1.2).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 0.85) && waits.iter().any(|wait| *wait > 1.15));
    }
}
