//! Why there is no connection, in words for an operator.

use std::fmt;
use std::time::Duration;

use lapin::protocol::AMQPError;

/// Why the broker cannot be used. Its text fits "failed to …", names the peer, and holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Outage {
    /// What kind, for metrics and for advice.
    pub kind: OutageKind,
    /// The whole story in one line, with the broker's own words where it gave some.
    pub reason: String,
}

/// Kinds of outage, by what an operator would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutageKind {
    /// No TCP connection: name not resolved, refused, no route.
    Unreachable,
    /// TLS was not agreed on, or its files cannot be read.
    Tls,
    /// The broker refused the login.
    Login,
    /// The vhost is missing, or the user may not use it.
    Vhost,
    /// The exchange is missing, may not be declared, or exists with another type.
    Exchange,
    /// The broker did not answer in time.
    Silent,
    /// The broker closed the connection and said why.
    Closed,
    /// The connection broke.
    Broken,
}

impl OutageKind {
    /// The word for metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::Login => "login",
            Self::Vhost => "vhost",
            Self::Exchange => "exchange",
            Self::Silent => "silent",
            Self::Closed => "closed",
            Self::Broken => "broken",
        }
    }
}

impl fmt::Display for OutageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Outage {
    pub(crate) fn new(kind: OutageKind, reason: String) -> Self {
        Self { kind, reason }
    }

    /// `step` (as in "open channel") was not answered within `limit`.
    pub(crate) fn silent(step: &str, limit: Duration) -> Self {
        Self::new(OutageKind::Silent, format!("{step}: no answer within {} s", limit.as_secs_f32()))
    }

    /// The connection to `peer` was lost after it had been set up.
    pub(crate) fn lost(peer: &str, error: &lapin::Error) -> Self {
        let kind = match error.kind() {
            lapin::ErrorKind::ProtocolError(_) => OutageKind::Closed,
            lapin::ErrorKind::MissingHeartbeatError => OutageKind::Silent,
            _ => OutageKind::Broken,
        };
        Self::new(kind, format!("keep the connection to {peer}: {}", words(error)))
    }
}

/// What the server said, if the error is its word.
pub(crate) fn server_word(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(word) => Some(word),
        _ => None,
    }
}

/// An error of lapin in few words: the server's code and text where it is the server's.
pub(crate) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(word) => format!("{} {}", word.get_id(), word.get_message()),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
