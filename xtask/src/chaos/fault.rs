//! What can break, and the sequence in which a seed lets it.

use std::fmt;
use std::time::Duration;

/// One thing that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    BrokerRestarts,
    BrokerKilled,
    BrokerFreezes,
    BrokerBlocked,
    BrokerClosesConnections,
    BrokerLinkCut,
    BrokerLinkCutInFrame,
    BrokerLinkSilent,
    QueueUnbound,
    QueueFull,
    Poison,
    QuarantineRetried,
    PostgresRestarts,
    PostgresRestartsAtOnce,
    PostgresKilled,
    PostgresCrashes,
    WalsenderTerminated,
    PostgresLinkCut,
    PostgresLinkCutInFrame,
    PostgresLinkSilent,
    RelayKilled,
    RelayTerminated,
    StandbyTakesOver,
}

/// What happens to the relay itself while something else is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inner {
    Nothing,
    RelayKilled,
    RelayTerminated,
}

/// One fault of a sequence, and the quiet before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) pause: Duration,
    pub(super) kind: Kind,
    /// How long it lasts, where that is ours to say.
    pub(super) hold: Duration,
    /// Which of some ways.
    pub(super) way: usize,
    pub(super) inner: Inner,
    /// Whether the relay has to be well again before the next one.
    pub(super) recovers: bool,
}

/// The endless sequence of one seed: every kind comes once before any comes again.
pub(super) struct Sequence {
    random: fastrand::Rng,
    bag: Vec<Kind>,
}

impl Kind {
    const ALL: [Self; 23] = [
        Self::BrokerRestarts,
        Self::BrokerKilled,
        Self::BrokerFreezes,
        Self::BrokerBlocked,
        Self::BrokerClosesConnections,
        Self::BrokerLinkCut,
        Self::BrokerLinkCutInFrame,
        Self::BrokerLinkSilent,
        Self::QueueUnbound,
        Self::QueueFull,
        Self::Poison,
        Self::QuarantineRetried,
        Self::PostgresRestarts,
        Self::PostgresRestartsAtOnce,
        Self::PostgresKilled,
        Self::PostgresCrashes,
        Self::WalsenderTerminated,
        Self::PostgresLinkCut,
        Self::PostgresLinkCutInFrame,
        Self::PostgresLinkSilent,
        Self::RelayKilled,
        Self::RelayTerminated,
        Self::StandbyTakesOver,
    ];

    /// Whether it lasts for [`Fault::hold`].
    fn lasts(self) -> bool {
        matches!(
            self,
            Self::BrokerFreezes
                | Self::BrokerBlocked
                | Self::BrokerLinkSilent
                | Self::QueueUnbound
                | Self::QueueFull
                | Self::PostgresLinkSilent
                | Self::BrokerKilled
        )
    }

    /// Whether the consumer's own connection does not live through it.
    pub(super) fn breaks_consumers(self) -> bool {
        matches!(
            self,
            Self::BrokerRestarts | Self::BrokerKilled | Self::BrokerFreezes | Self::BrokerClosesConnections
        )
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::BrokerRestarts => "broker restarts",
            Self::BrokerKilled => "broker killed",
            Self::BrokerFreezes => "broker frozen",
            Self::BrokerBlocked => "broker blocked (memory alarm)",
            Self::BrokerClosesConnections => "broker closes all connections",
            Self::BrokerLinkCut => "link to the broker cut",
            Self::BrokerLinkCutInFrame => "link to the broker cut inside a frame",
            Self::BrokerLinkSilent => "link to the broker silent",
            Self::QueueUnbound => "queue unbound",
            Self::QueueFull => "queue full (reject-publish)",
            Self::Poison => "poison",
            Self::QuarantineRetried => "quarantine retried",
            Self::PostgresRestarts => "Postgres restarts (fast)",
            Self::PostgresRestartsAtOnce => "Postgres restarts (immediate)",
            Self::PostgresKilled => "Postgres killed",
            Self::PostgresCrashes => "a process of Postgres killed",
            Self::WalsenderTerminated => "walsender terminated",
            Self::PostgresLinkCut => "link to Postgres cut",
            Self::PostgresLinkCutInFrame => "link to Postgres cut inside a frame",
            Self::PostgresLinkSilent => "link to Postgres silent",
            Self::RelayKilled => "relay killed",
            Self::RelayTerminated => "relay told to end, and started again",
            Self::StandbyTakesOver => "relay killed beside a standby",
        }
    }
}

impl Fault {
    /// Whether the operator who mends it also asks for what was parked meanwhile.
    pub(super) fn retries(&self) -> bool {
        self.kind == Kind::QueueUnbound && self.way != 0
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.words())?;
        if self.kind.lasts() {
            write!(f, " for {:.1?}", self.hold)?;
        }
        if self.retries() {
            f.write_str(", then what is parked is asked for")?;
        }
        match self.inner {
            Inner::Nothing => Ok(()),
            Inner::RelayKilled => f.write_str(", in the middle the relay killed"),
            Inner::RelayTerminated => f.write_str(", in the middle the relay told to end"),
        }
    }
}

impl Sequence {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), bag: Vec::new() }
    }
}

impl Iterator for Sequence {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        if self.bag.is_empty() {
            self.bag = Kind::ALL.into();
            self.random.shuffle(&mut self.bag);
        }
        let kind = self.bag.pop()?;
        let random = &mut self.random;
        let mut millis = |range| Duration::from_millis(random.u64(range));
        let (pause, hold) = (millis(200..4_000), millis(500..8_000));
        let inner = match random.u32(..4) {
            0 => Inner::RelayKilled,
            1 => Inner::RelayTerminated,
            _ => Inner::Nothing,
        };
        Some(Fault {
            pause,
            kind,
            hold,
            way: random.usize(..3),
            // Where a fault does not last there is no middle.
            inner: if kind.lasts() { inner } else { Inner::Nothing },
            recovers: random.bool(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_sequence_and_every_kind_in_it() {
        let draw = |seed| Sequence::new(seed).take(Kind::ALL.len()).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(7);
        assert!(Kind::ALL.iter().all(|kind| drawn.iter().any(|fault| fault.kind == *kind)));
    }
}
