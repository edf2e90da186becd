//! Times, and what is said of them.

use std::fmt;
use std::time::Duration;

/// How long something took, each time.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of all do not exceed, by the nearest rank.
    pub(crate) fn quantile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// Median, 99th percentile and the longest.
    pub(crate) fn summary(&mut self) -> Summary {
        Summary([0.5, 0.99, 1.0].map(|share| self.quantile(share)))
    }
}

pub(crate) struct Summary([Duration; 3]);

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, longest] = self.0.map(|time| time.as_secs_f64() * 1000.0);
        write!(f, "p50 {p50:>8.3}   p99 {p99:>8.3}   longest {longest:>8.3} ms")
    }
}
