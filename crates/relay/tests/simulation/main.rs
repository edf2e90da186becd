//! The whole relay against a simulated Postgres and a simulated broker, with seeded faults.
//!
//! Every seed is one world. A failing seed is printed; `SIMULATION_SEED=n` replays that one alone, and
//! `SIMULATION_SEEDS=n` runs another number of worlds.

mod behaviour;
mod broker;
mod fate;
mod judge;
mod quarantine;
mod settings;
mod shop;
mod table;
mod wal;
mod world;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use fate::FAULTS;
use world::World;

const SEEDS: u64 = 4000;

fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "this is the test's own setting, not the core's")]
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn no_seeded_world_loses_reorders_or_repeats() {
    let only = setting("SIMULATION_SEED");
    let seeds = only.map_or(0..setting("SIMULATION_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut totals = BTreeMap::from_iter(FAULTS.map(|fault| (fault, 0u64)));
    for seed in seeds {
        let run = std::panic::catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
        let Ok(counts) = run else { panic!("seed {seed} failed: replay it with SIMULATION_SEED={seed}") };
        for (fault, count) in counts {
            *totals.get_mut(fault).expect("every fault is listed") += count;
        }
    }
    println!("simulation totals:");
    for (fault, count) in &totals {
        println!("{count:>10}  {fault}");
    }
    if only.is_none() {
        let missing: Vec<_> = totals.iter().filter(|(_, count)| **count == 0).collect();
        assert!(missing.is_empty(), "faults that never happened: {missing:?}");
    }
}

/// A failing seed is worth something only if it fails again.
#[test]
fn a_seed_is_one_world() {
    for seed in 0..SEEDS / 2 {
        assert_eq!(World::new(seed).run(), World::new(seed).run(), "seed {seed}");
    }
}
