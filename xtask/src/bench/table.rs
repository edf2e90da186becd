//! What a person reads: a line a figure, a column a run, the median last.

use super::leg;
use super::quantile::{Latency, median};
use super::steady::{self, Steady};

/// The figures of a drain.
pub(super) fn drain(runs: &[leg::Run]) {
    heading(runs.len());
    let line = |name, decimals, figure: &dyn Fn(&leg::Run) -> f64| {
        line(name, decimals, &runs.iter().map(figure).collect::<Vec<_>>());
    };
    line("(a) pg_recvlogical     events/s", 0, &|run| run.recvlogical.events_per_s);
    line("      walsender        CPU µs/event", 1, &|run| run.recvlogical.walsender_us);
    line("(b) bare publisher     events/s", 0, &|run| run.publisher.events_per_s);
    line("      publisher        CPU µs/event", 1, &|run| run.publisher.own_us);
    line("      broker           CPU µs/event", 1, &|run| run.publisher.broker_us);
    line("(c) relay              events/s", 0, &|run| run.relay.events_per_s);
    line("      relay            CPU µs/event", 1, &|run| run.relay.own_us);
    line("      walsender        CPU µs/event", 1, &|run| run.relay.walsender_us);
    line("      broker           CPU µs/event", 1, &|run| run.relay.broker_us);
    line("      relay            peak RSS MiB", 1, &|run| run.relay.peak_rss_mib);
    line("(c) / (b)", 2, &|run| run.relay.events_per_s / run.publisher.events_per_s);
    line("(c) / (a)", 2, &|run| run.relay.events_per_s / run.recvlogical.events_per_s);
}

/// The figures at a steady rate.
pub(super) fn steady(plan: Steady, runs: &[steady::Run]) {
    let Steady { rate, seconds } = plan;
    println!("\n{} events/s for {seconds} s, quorum queue with a consumer, in milliseconds", thousands(rate));
    heading(runs.len());
    let lines = |name: &str, latency: &dyn Fn(&steady::Run) -> Latency| {
        let all: Vec<_> = runs.iter().map(latency).collect();
        line(&format!("{name:<46} p50"), 2, &all.iter().map(|latency| latency.p50_ms).collect::<Vec<_>>());
        line(&format!("{:<46} p99", ""), 2, &all.iter().map(|latency| latency.p99_ms).collect::<Vec<_>>());
    };
    lines("(b) publish → confirm, alone", &|run| run.alone);
    lines("(b) publish → confirm, beside the writer", &|run| run.beside);
    lines("(c) commit → confirm, its own histogram", &|run| run.relay.delivery);
    lines("(c) publish → confirm, its own histogram", &|run| run.relay.publish);
    lines("(c) insert answered → at the consumer", &|run| run.relay.answered);
    lines("(c) insert sent → at the consumer", &|run| run.relay.sent);
    let ratio = |name, latency: fn(&steady::Run) -> Latency| {
        let all: Vec<_> = runs.iter().map(|run| run.relay.delivery.p99_ms / latency(run).p99_ms).collect();
        line(name, 2, &all);
    };
    ratio("(c) commit → confirm / (b) alone, p99", |run| run.alone);
    ratio("(c) commit → confirm / (b) beside, p99", |run| run.beside);
}

/// A number in groups of three digits.
pub(super) fn thousands(number: u32) -> String {
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

fn heading(runs: usize) {
    print!("{:<50}", "");
    for run in 1..=runs {
        print!("{:>10}", format!("run {run}"));
    }
    println!("{:>10}", "median");
}

fn line(name: &str, decimals: usize, figures: &[f64]) {
    print!("{name:<50}");
    for figure in figures {
        print!("{figure:>10.decimals$}");
    }
    println!("{:>10.decimals$}", median(figures));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (500_000, "500,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(thousands(number), text);
        }
    }
}
