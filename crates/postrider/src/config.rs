//! The configuration: what every key means to the program, and how it is read.
//!
//! One list of keys ([`keys::KEYS`]) carries names, forms, defaults and meanings; the structs here are
//! its typed side. Sources are laid over each other by [`overlay`], rules between keys live in
//! [`check`]. Units are types in here and stand in the names outside.

mod check;
mod example;
mod key;
mod keys;
mod overlay;
mod secret;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use postrider_postgres::TableName;
use serde::{Deserialize, Deserializer};

#[cfg(test)]
pub(crate) use example::readme_rows;
pub(crate) use example::{effective, example};
pub(crate) use overlay::{Loaded, Origin, Sources};
pub(crate) use secret::{Secret, SecretUrl};

/// The effective configuration; complete, checked, with the passwords from files read in.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) postgres: Postgres,
    pub(crate) outbox: Outbox,
    pub(crate) rabbitmq: RabbitMq,
    pub(crate) limits: Limits,
    pub(crate) retry: Retry,
    pub(crate) quarantine: Quarantine,
    pub(crate) http: Http,
    pub(crate) log: Log,
}

/// Where the outbox is, and by which slot it is read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Postgres {
    /// As libpq would take it; without it only `config` works.
    pub(crate) url: Option<SecretUrl>,
    pub(crate) password_file: Option<PathBuf>,
    /// What `password_file` held.
    #[serde(skip)]
    pub(crate) password: Option<Secret>,
    pub(crate) slot: String,
    pub(crate) publication: String,
    #[serde(rename = "report_every_ms", deserialize_with = "milliseconds")]
    pub(crate) report_every: Duration,
}

/// What the outbox looks like.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outbox {
    /// The names as written; [`Outbox::tables`] reads them.
    pub(crate) table: Vec<String>,
}

impl Outbox {
    /// The tables' names.
    pub(crate) fn tables(&self) -> Result<Vec<TableName>, ConfigError> {
        let read =
            |text: &String| text.parse().map_err(|error| ConfigError(format!("read outbox.table: {error}")));
        self.table.iter().map(read).collect()
    }
}

/// Where events go.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RabbitMq {
    pub(crate) url: Option<SecretUrl>,
    /// Empty unless set, like `url`; [`RabbitMq::brokers`] reads both.
    #[serde(default)]
    pub(crate) urls: Vec<SecretUrl>,
    pub(crate) password_file: Option<PathBuf>,
    /// What `password_file` held.
    #[serde(skip)]
    pub(crate) password: Option<Secret>,
    pub(crate) exchange: String,
    pub(crate) exchange_type: String,
    pub(crate) declare: bool,
    /// The template as written.
    pub(crate) routing_key: String,
    pub(crate) lanes: usize,
    pub(crate) window_events: usize,
    pub(crate) events_per_key: usize,
    #[serde(rename = "confirm_timeout_ms", deserialize_with = "milliseconds")]
    pub(crate) confirm_timeout: Duration,
    #[serde(rename = "heartbeat_s", deserialize_with = "seconds")]
    pub(crate) heartbeat: Duration,
    pub(crate) message_bytes_max: usize,
}

impl RabbitMq {
    /// The nodes to try in turn; empty if none is configured.
    pub(crate) fn brokers(&self) -> &[SecretUrl] {
        if self.urls.is_empty() { self.url.as_slice() } else { &self.urls }
    }
}

/// How much may be in flight, how fast, and how long a shutdown may take.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) in_flight_events: usize,
    pub(crate) in_flight_bytes: usize,
    /// 0 is no limit.
    pub(crate) events_per_second: u32,
    #[serde(rename = "drain_timeout_ms", deserialize_with = "milliseconds")]
    pub(crate) drain_timeout: Duration,
}

/// How an event is tried again; the pause doubles from `first` to `max`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    pub(crate) attempts: u32,
    #[serde(rename = "first_ms", deserialize_with = "milliseconds")]
    pub(crate) first: Duration,
    #[serde(rename = "max_ms", deserialize_with = "milliseconds")]
    pub(crate) max: Duration,
    /// The share of a pause that is random, 0.0 to 1.0.
    pub(crate) jitter: f64,
}

/// What happens to an event that cannot be delivered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quarantine {
    pub(crate) scope: Scope,
    pub(crate) unrouted: Unrouted,
    pub(crate) burst_events: u32,
}

/// How far a poison event reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    /// Later events of the aggregate are parked behind it.
    Key,
    /// Only the event.
    Event,
    /// The relay holds at the first and stores nothing.
    Halt,
}

/// What becomes of an event that no queue is bound for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unrouted {
    /// Quarantined with its aggregate.
    Key,
    /// Quarantined alone.
    Event,
    /// Paid and counted.
    Accept,
}

/// The four pages for machines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    /// `address:port`; empty is off, port 0 is any.
    pub(crate) listen: String,
    #[serde(rename = "stalled_after_ms", deserialize_with = "milliseconds")]
    pub(crate) stalled_after: Duration,
}

/// What is written to stderr.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    /// A level, or a level and overrides by target.
    pub(crate) level: String,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// A configuration that cannot be used: exit code 2. Fits "failed to {e}" and never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError(pub(crate) String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_secs)
}
