//! Medians and percentiles.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// The middle of what was measured and its slow end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latency {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Latency {
    /// Of single measurements.
    pub(super) fn of(mut all: Vec<Duration>) -> Result<Self> {
        all.sort_unstable();
        let at = |percent: usize| {
            let index = (all.len() * percent).div_ceil(100).saturating_sub(1);
            all.get(index).map(|duration| duration.as_secs_f64() * 1e3)
        };
        let latency = at(50).zip(at(99)).map(|(p50_ms, p99_ms)| Self { p50_ms, p99_ms });
        latency.context("take percentiles of nothing")
    }

    /// Of a Prometheus histogram: upper bounds in seconds with the count at or below each; within a bucket,
    /// a straight line.
    pub(super) fn of_buckets(buckets: &[(f64, f64)]) -> Result<Self> {
        let total = buckets.last().map_or(0.0, |bucket| bucket.1);
        ensure!(total > 0.0, "take percentiles of an empty histogram");
        let at = |share: f64| {
            let rank = total * share;
            let mut below = (0.0, 0.0);
            for &(bound, count) in buckets {
                if count >= rank && count > below.1 {
                    return below.0 + (bound - below.0) * (rank - below.1) / (count - below.1);
                }
                below = (bound, count);
            }
            f64::NAN
        };
        Ok(Self { p50_ms: at(0.5) * 1e3, p99_ms: at(0.99) * 1e3 })
    }

    /// As one line from one process to another.
    pub(super) fn to_line(self) -> String {
        json!({ "p50_ms": self.p50_ms, "p99_ms": self.p99_ms }).to_string()
    }

    /// What [`Self::to_line`] wrote.
    pub(super) fn from_line(line: &str) -> Result<Self> {
        let found: Value = serde_json::from_str(line).with_context(|| format!("read {line:?}"))?;
        let number = |name: &str| found[name].as_f64().with_context(|| format!("find {name} in {line:?}"));
        Ok(Self { p50_ms: number("p50_ms")?, p99_ms: number("p99_ms")? })
    }
}

/// The middle one; of an even number, the mean of the two in the middle.
pub(super) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted() {
        let all = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(Latency::of(all).unwrap(), Latency { p50_ms: 100.0, p99_ms: 198.0 });
        let one = Latency::of(vec![Duration::from_millis(7)]).unwrap();
        assert_eq!(one, Latency { p50_ms: 7.0, p99_ms: 7.0 });
        assert!(Latency::of(Vec::new()).is_err());
    }

    #[test]
    fn within_a_bucket_the_line_is_straight() {
        let buckets = [(0.001, 0.0), (0.002, 50.0), (0.004, 100.0), (f64::INFINITY, 100.0)];
        let latency = Latency::of_buckets(&buckets).unwrap();
        assert!((latency.p50_ms - 2.0).abs() < 1e-9, "{latency:?}");
        assert!((latency.p99_ms - 3.96).abs() < 1e-9, "{latency:?}");
        assert!(Latency::of_buckets(&[(1.0, 0.0), (f64::INFINITY, 0.0)]).is_err());
    }

    #[test]
    fn a_latency_crosses_to_another_process() {
        let latency = Latency { p50_ms: 0.25, p99_ms: 12.5 };
        assert_eq!(Latency::from_line(&latency.to_line()).unwrap(), latency);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let check = |figures: &[f64], expected: f64| assert!((median(figures) - expected).abs() < 1e-9);
        check(&[3.0, 1.0, 2.0], 2.0);
        check(&[4.0, 1.0, 2.0, 3.0], 2.5);
        check(&[5.0], 5.0);
    }
}
