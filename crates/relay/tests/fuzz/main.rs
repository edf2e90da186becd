//! The decoder, the mapping and the whole relay on recordings of a real Postgres that were damaged on purpose.
//!
//! Every seed is one input ([`mutation`]), given to the relay and judged ([`trial`]): nothing panics, nothing
//! allocates by a length that a message only claims, and no row of an outbox is passed over. A failing seed is
//! printed; `FUZZ_SEED=n` replays that one alone, `FUZZ_SECONDS=n` goes on for so long, from `FUZZ_FROM=n` upwards.

mod corpus;
mod mutation;
mod trial;
mod wire;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use corpus::Corpus;

/// How many inputs the ordinary test tries.
const INPUTS: u64 = 3000;

/// How much more address space the process may take over all its inputs together, each of some hundred kilobytes.
const GROWTH_KIB: u64 = 256 << 10;

#[test]
fn no_damaged_stream_panics_or_loses_a_row() {
    let corpus = Corpus::read();
    let only = setting("FUZZ_SEED");
    let first = only.or_else(|| setting("FUZZ_FROM")).unwrap_or(0);
    let seconds = setting("FUZZ_SECONDS").map(Duration::from_secs);
    let began = now();
    let before_kib = address_space_kib();
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut executions = 0;
    for seed in first.. {
        let enough = match (only, seconds) {
            (Some(_), _) => executions == 1,
            (None, Some(limit)) => now() - began >= limit,
            (None, None) => executions == INPUTS,
        };
        if enough {
            break;
        }
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let input = mutation::input(&corpus, &mut fastrand::Rng::with_seed(seed));
            trial::run(&corpus, &input)
        }));
        let Ok(seen) = run else { panic!("seed {seed} failed: replay it with FUZZ_SEED={seed}") };
        let grown_kib = address_space_kib().saturating_sub(before_kib);
        assert!(
            grown_kib < GROWTH_KIB,
            "FUZZ_SEED={seed} allocates absurdly: {grown_kib} KiB more than before"
        );
        for outcome in seen {
            *outcomes.entry(outcome).or_default() += 1;
        }
        executions += 1;
    }
    for (outcome, count) in &outcomes {
        println!("{count:>10}  {outcome}");
    }
    println!("{executions} inputs from seed {first} on, {} distinct outcomes", outcomes.len());
    if only.is_none() {
        trial::all_seen(&outcomes);
    }
}

fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "this is the test's own setting, not the core's")]
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is how long the test runs, not the core's time")]
    Instant::now()
}

/// The most that this process has ever mapped: proc(5), `VmPeak`. It counts what was asked for and never touched.
fn address_space_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells a process about itself");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("it has an address space");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}
