//! What a publisher is told at start.

use std::time::Duration;

use crate::endpoint::Endpoint;

/// How to reach the broker and how to publish; the defaults are those of the configuration file.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the broker is; several are tried in turn. Never empty.
    pub endpoints: Vec<Endpoint>,
    /// The exchange that must exist; the empty name is the broker's default exchange.
    pub exchange: String,
    /// Its type, for the declaration: `topic`, `direct`, `fanout`, `headers`, or a plugin's.
    pub exchange_type: String,
    /// Whether to declare the exchange (durable), or only to check that it is there.
    pub declare: bool,
    /// How many channels publish, each with at most one window open.
    pub lanes: usize,
    /// From the hand-over of a window until its unanswered messages are given up.
    pub confirm_timeout: Duration,
    /// The heartbeat to agree on, in whole seconds, unless the URL names one; a silent broker is given up
    /// after twice that long.
    pub heartbeat: Duration,
    /// How long to wait between attempts to connect.
    pub backoff: Backoff,
    /// Seeds the jitter.
    pub seed: u64,
    /// The name that the broker's management shows for the connection.
    pub connection_name: String,
}

/// Delays between attempts to connect: doubled from `first` up to `max`, each spread by `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// The cap, before jitter.
    pub max: Duration,
    /// The spread, as a share of the delay: 0.2 is up to a fifth more or less.
    pub jitter: f64,
}

impl Settings {
    /// The defaults, for these endpoints.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            exchange: "postrider".to_owned(),
            exchange_type: "topic".to_owned(),
            declare: true,
            lanes: 8,
            confirm_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            backoff: Backoff::default(),
            seed: 0,
            connection_name: "postrider".to_owned(),
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), max: Duration::from_secs(5), jitter: 0.2 }
    }
}
