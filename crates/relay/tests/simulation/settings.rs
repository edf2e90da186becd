//! The relay's settings in the simulation.

use std::time::Duration;

use postrider_relay::{Backoff, MappingSettings, QuarantineScope, Settings, Unrouted};

pub(crate) fn settings(seed: u64) -> Settings {
    let first = Duration::from_millis(100);
    Settings {
        mapping: MappingSettings::default(),
        lanes: 3,
        window_events: 4,
        events_per_key: 1,
        in_flight_events: 40,
        in_flight_bytes: 1 << 20,
        events_per_second: 0,
        slot: "postrider".to_owned(),
        attempts: 12,
        scope: QuarantineScope::Key,
        unrouted: Unrouted::Key,
        burst_events: 50,
        backoff: Backoff { first, max: Duration::from_secs(30), jitter: 0.2 },
        report_every: Duration::from_millis(50),
        seed,
    }
}

/// Those of one world.
pub(crate) fn seeded(random: &mut fastrand::Rng) -> Settings {
    let scopes = [QuarantineScope::Key, QuarantineScope::Key, QuarantineScope::Event, QuarantineScope::Halt];
    let unrouted = [Unrouted::Key, Unrouted::Key, Unrouted::Event, Unrouted::Accept];
    Settings {
        window_events: random.usize(1..8),
        scope: scopes[random.usize(..scopes.len())],
        unrouted: unrouted[random.usize(..unrouted.len())],
        burst_events: [0, 1, 3, 50][random.usize(..4)],
        attempts: random.u32(1..5),
        ..settings(random.u64(..))
    }
}
