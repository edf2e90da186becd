//! What a person sees while events flow, and the table at the end.

use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::{Duration, Instant};

use testenv::consumer::Consumer;
use testenv::oracle::Verdict;

/// What "now" means for rates and percentiles.
const WINDOW: Duration = Duration::from_secs(2);
/// How often a line comes where nothing can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// From the moment the shop sent COMMIT to the arrival at the consumer, for each event's first delivery.
#[derive(Default)]
pub(super) struct Latencies {
    commits: HashMap<String, Instant>,
    /// Arrived, and not yet known to be committed: the shop hears of its commit later than the relay may.
    early: HashMap<String, Instant>,
    committed: usize,
    seen: usize,
    recent: VecDeque<(Instant, Duration)>,
    all: Vec<Duration>,
}

impl Latencies {
    /// Takes in commits of the shop.
    pub(super) fn commit(&mut self, commits: HashMap<String, Instant>) {
        self.committed += commits.len();
        for (id, at) in commits {
            match self.early.remove(&id) {
                Some(arrived) => self.add(at, arrived),
                None => _ = self.commits.insert(id, at),
            }
        }
    }

    /// Takes in what has arrived since the last call.
    pub(super) fn arrive(&mut self, consumer: &Consumer) {
        let deliveries = consumer.since(self.seen);
        self.seen += deliveries.len();
        for delivery in deliveries.iter().filter(|delivery| delivery.mark().is_none()) {
            match self.commits.remove(delivery.message_id()) {
                Some(at) => self.add(at, delivery.arrived),
                None => _ = self.early.insert(delivery.message_id().to_owned(), delivery.arrived),
            }
        }
    }

    /// How many events are committed and have not arrived.
    pub(super) fn in_flight(&self) -> usize {
        self.commits.len()
    }

    fn add(&mut self, at: Instant, arrived: Instant) {
        let latency = arrived.saturating_duration_since(at);
        self.recent.push_back((arrived, latency));
        self.all.push(latency);
    }

    /// What has arrived within the last [`WINDOW`].
    fn recent(&mut self) -> Vec<Duration> {
        let now = Instant::now();
        self.recent.retain(|(arrived, _)| now.duration_since(*arrived) < WINDOW);
        self.recent.iter().map(|(_, latency)| *latency).collect()
    }
}

/// The terminal, or what stands in its place.
pub(super) struct Screen {
    redraws: bool,
    last_line: Option<Instant>,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { redraws: stdout().is_terminal(), last_line: None }
    }

    /// One line about now.
    pub(super) fn progress(&mut self, elapsed: Duration, latencies: &mut Latencies, lag_bytes: i64) {
        if !self.redraws && self.last_line.is_some_and(|last| last.elapsed() < LINE_EVERY) {
            return;
        }
        self.last_line = Some(Instant::now());
        let mut recent = latencies.recent();
        let window = usize::try_from(WINDOW.min(elapsed).as_millis()).unwrap_or(usize::MAX).max(1);
        let line = format!(
            "{:5.1} s  committed {:>7}  arriving {:>6}/s  in flight {:>5}  slot lag {:>6} kB  p50 {}  p99 {}",
            elapsed.as_secs_f64(),
            thousands(latencies.committed),
            thousands(recent.len() * 1000 / window),
            thousands(latencies.in_flight()),
            thousands(usize::try_from(lag_bytes / 1024).unwrap_or(0)),
            milliseconds(percentile(&mut recent, 50)),
            milliseconds(percentile(&mut recent, 99)),
        );
        if self.redraws {
            print!("\r\x1b[K{line}");
            // A terminal that has gone is told nothing more.
            let _ = stdout().flush();
        } else {
            println!("{line}");
        }
    }

    /// One line that stays.
    pub(super) fn say(&mut self, line: &str) {
        let start = if self.redraws { "\r\x1b[K" } else { "" };
        println!("{start}         {line}");
    }
}

/// What it all came to.
pub(super) fn table(verdict: &Verdict, latencies: &Latencies) {
    let mut all = latencies.all.clone();
    println!();
    for (name, count, what) in [
        ("committed", verdict.committed, "events, by the ledger in Postgres"),
        (
            "rolled back",
            usize::try_from(verdict.rolled_back).unwrap_or(usize::MAX),
            "with a transaction or a savepoint",
        ),
        ("delivered", verdict.delivered, "of the committed, to the consumer"),
        ("lost", verdict.lost.len(), ""),
        ("ghosts", verdict.ghosts.len(), "delivered, never committed"),
        ("out of order", verdict.out_of_order.len(), "behind a younger event of the same order"),
        ("altered", verdict.altered.len(), "in body, aggregate or position"),
        (
            "duplicates",
            verdict.duplicates,
            "delivered, but not yet reported to Postgres when the relay was killed",
        ),
    ] {
        println!("{}", format!("{name:<14}{:>9}   {what}", thousands(count)).trim_end());
    }
    if !verdict.forbidden.is_empty() {
        println!("{:<14}{:>9}   of what was settled before", "", thousands(verdict.forbidden.len()));
    }
    let (p50, p99) = (percentile(&mut all, 50), percentile(&mut all, 99));
    let max = all.last().copied();
    println!(
        "\ncommit to delivery: p50 {}, p99 {}, longest {} (the relay was away for a while)",
        milliseconds(p50),
        milliseconds(p99),
        milliseconds(max)
    );
}
/// The value that so many percent do not exceed; sorts on the way.
fn percentile(values: &mut [Duration], percent: usize) -> Option<Duration> {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.checked_sub(1)?).copied()
}

fn milliseconds(duration: Option<Duration>) -> String {
    duration.map_or("-".to_owned(), |duration| format!("{:.1} ms", duration.as_secs_f64() * 1000.0))
}

/// 1234567 as 1,234,567.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let ms = |n| Duration::from_millis(n);
        let mut values: Vec<_> = (1..=200).rev().map(ms).collect();
        assert_eq!(percentile(&mut values, 50), Some(ms(100)));
        assert_eq!(percentile(&mut values, 99), Some(ms(198)));
        assert_eq!(percentile(&mut [ms(7)], 99), Some(ms(7)));
        assert_eq!(percentile(&mut [], 50), None);
    }

    #[test]
    fn thousands_are_grouped() {
        let check = |number, expected| assert_eq!(thousands(number), expected);
        check(0, "0");
        check(999, "999");
        check(1_000, "1,000");
        check(1_234_567, "1,234,567");
    }
}
