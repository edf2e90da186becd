//! From the configuration to what the core and the two edges are told.

use postrider_postgres::{Server, Subject, TableName};
use postrider_rabbitmq::Endpoint;
use postrider_relay as relay;

use crate::config::{Config, ConfigError, Scope, Unrouted};

/// Where Postgres is.
pub(crate) fn server(config: &Config) -> Result<Server, ConfigError> {
    let url =
        config.postgres.url.as_ref().ok_or_else(|| missing("postgres.url", "POSTRIDER_POSTGRES_URL"))?;
    let server = Server::parse(url.expose()).map_err(|e| ConfigError(format!("read postgres.url: {e}")))?;
    Ok(match &config.postgres.password {
        Some(password) => server.with_password(password.expose()),
        None => server,
    })
}

/// What we watch there.
pub(crate) fn subject(config: &Config) -> Result<Subject, ConfigError> {
    let postgres = &config.postgres;
    Subject::new(&postgres.slot, &postgres.publication, config.outbox.tables()?)
        .map_err(|e| ConfigError(e.to_string()))
}

/// The longest wait between attempts to connect.
const RECONNECT_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// Where the broker is, and how to publish.
pub(crate) fn publisher(config: &Config) -> Result<postrider_rabbitmq::Settings, ConfigError> {
    let rabbitmq = &config.rabbitmq;
    if rabbitmq.brokers().is_empty() {
        return Err(missing("rabbitmq.url", "POSTRIDER_RABBITMQ_URL"));
    }
    let endpoint = |url: &crate::config::SecretUrl| {
        let endpoint =
            Endpoint::parse(url.expose()).map_err(|e| ConfigError(format!("read rabbitmq.url: {e}")))?;
        Ok(match &rabbitmq.password {
            Some(password) => endpoint.with_password(password.expose()),
            None => endpoint,
        })
    };
    let endpoints = rabbitmq.brokers().iter().map(endpoint).collect::<Result<_, ConfigError>>()?;
    let retry = &config.retry;
    Ok(postrider_rabbitmq::Settings {
        exchange: rabbitmq.exchange.clone(),
        exchange_type: rabbitmq.exchange_type.clone(),
        declare: rabbitmq.declare,
        lanes: rabbitmq.lanes,
        confirm_timeout: rabbitmq.confirm_timeout,
        heartbeat: rabbitmq.heartbeat,
        // A broker that comes back is found again soon, however long its events may wait for a retry.
        backoff: postrider_rabbitmq::Backoff {
            max: retry.max.min(RECONNECT_MAX),
            first: retry.first.min(RECONNECT_MAX),
            jitter: retry.jitter,
        },
        seed: fastrand::u64(..),
        connection_name: format!("postrider {}", config.postgres.slot),
        ..postrider_rabbitmq::Settings::new(endpoints)
    })
}

/// The limits and habits of the relay.
pub(crate) fn relay(config: &Config) -> Result<relay::Settings, ConfigError> {
    let (rabbitmq, limits, retry) = (&config.rabbitmq, &config.limits, &config.retry);
    Ok(relay::Settings {
        mapping: relay::MappingSettings {
            tables: config.outbox.tables()?.iter().map(relation).collect(),
            exchange: rabbitmq.exchange.as_str().into(),
            routing_key: rabbitmq
                .routing_key
                .parse()
                .map_err(|e| ConfigError(format!("read rabbitmq.routing_key: {e}")))?,
            message_bytes_max: rabbitmq.message_bytes_max,
            ..relay::MappingSettings::default()
        },
        lanes: rabbitmq.lanes,
        window_events: rabbitmq.window_events,
        events_per_key: rabbitmq.events_per_key,
        in_flight_events: limits.in_flight_events,
        in_flight_bytes: limits.in_flight_bytes,
        events_per_second: limits.events_per_second,
        slot: config.postgres.slot.clone(),
        backoff: relay::Backoff { first: retry.first, max: retry.max, jitter: retry.jitter },
        attempts: retry.attempts,
        scope: match config.quarantine.scope {
            Scope::Key => relay::QuarantineScope::Key,
            Scope::Event => relay::QuarantineScope::Event,
            Scope::Halt => relay::QuarantineScope::Halt,
        },
        unrouted: match config.quarantine.unrouted {
            Unrouted::Key => relay::Unrouted::Key,
            Unrouted::Event => relay::Unrouted::Event,
            Unrouted::Accept => relay::Unrouted::Accept,
        },
        burst_events: config.quarantine.burst_events,
        report_every: config.postgres.report_every,
        seed: fastrand::u64(..),
    })
}

/// How the stream names a table.
fn relation(table: &TableName) -> relay::RelationName {
    relay::RelationName::new(&table.schema, &table.table)
}

fn missing(key: &str, variable: &str) -> ConfigError {
    ConfigError(format!("find {key}: it has no default; set {variable}, or {key} in the file"))
}
