//! What a row needs to be different from the usual.

use std::path::PathBuf;

use testenv::consumer::{QueueKind, Value};
use testenv::writer::Load;

/// The stage of one row.
pub(crate) struct Setting {
    /// The programs of another Postgres than the usual.
    pub(crate) postgres: Option<PathBuf>,
    /// The kind of the queue that is judged.
    pub(crate) queue: QueueKind,
    /// Its further arguments.
    pub(crate) arguments: Vec<(&'static str, Value)>,
    /// The routing keys it is bound for.
    pub(crate) keys: &'static str,
    /// Whether the relay reaches Postgres over a link.
    pub(crate) postgres_link: bool,
    /// Whether the relay reaches the broker over a link.
    pub(crate) broker_link: bool,
    /// The relay's configuration beside what every row has.
    pub(crate) configuration: Vec<(&'static str, &'static str)>,
    /// Settings of the relay's Postgres sessions, as in `wal_sender_timeout=4s`.
    pub(crate) session: Vec<&'static str>,
    /// What the shop writes.
    pub(crate) load: Load,
}

impl Default for Setting {
    fn default() -> Self {
        let load = Load { orders: 100, transactions_per_second: Some(300.0), ..Load::default() };
        Self {
            postgres: None,
            queue: QueueKind::Quorum,
            arguments: Vec::new(),
            keys: "#",
            postgres_link: false,
            broker_link: false,
            configuration: Vec::new(),
            session: Vec::new(),
            load,
        }
    }
}

impl Setting {
    /// With a link to Postgres.
    pub(crate) fn postgres_link() -> Self {
        Self { postgres_link: true, ..Self::default() }
    }

    /// With a link to the broker.
    pub(crate) fn broker_link() -> Self {
        Self { broker_link: true, ..Self::default() }
    }

    /// With a key of the relay's configuration.
    pub(crate) fn set(mut self, key: &'static str, value: &'static str) -> Self {
        self.configuration.push((key, value));
        self
    }
}

/// How much of something this ring does, or with `POSTRIDER_FAULTS=full`.
pub(crate) fn size(short: u32, full: u32) -> u32 {
    if std::env::var("POSTRIDER_FAULTS").is_ok_and(|size| size == "full") { full } else { short }
}
