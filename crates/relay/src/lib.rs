//! The pure core of Postrider: it decides, and does nothing else.
//!
//! Frames of the replication stream go in ([`Frame`]), messages for the broker come out
//! ([`Window`]), the broker's word goes in ([`Answer`]), and positions that may be acknowledged
//! come out ([`Watermark`]). There is no IO, no clock and no randomness here that is not an argument.

mod aggregate;
mod body;
mod change;
mod columns;
mod command;
#[cfg(test)]
mod corpus;
mod decode;
mod draft;
mod effect;
mod exchanges;
mod frame;
mod headers;
mod hold;
mod ledger;
mod limits;
mod lsn;
mod mapping;
mod message;
mod pace;
mod parked;
mod pending;
pub mod quarantine;
mod reason;
mod relation;
mod relay;
mod releases;
mod report;
mod retry;
mod route;
mod routes;
mod row;
mod settings;
mod snapshot;
mod timestamp;
mod window;
mod works;

pub use change::{Change, Ignored, Mapper};
pub use columns::Columns;
pub use command::{Command, Verb};
pub use decode::DecodeError;
pub use effect::{Delivered, Effect, Notice};
pub use frame::Frame;
pub use hold::HoldCause;
pub use ledger::{ProtocolError, Watermark};
pub use limits::APP_ID;
pub use lsn::{Lsn, LsnError, Position, PositionError};
pub use mapping::{AggregateKey, Mapped, Refused, Settings as MappingSettings};
pub use message::{Answer, Broker, BrokerLimits, HeaderValue, Message, Verdict, Window, WindowEnd, WindowId};
pub use reason::Reason;
pub use relation::RelationName;
pub use relay::{Now, Relay};
pub use report::{CheckId, Checked};
pub use retry::Backoff;
pub use route::{RoutingKey, RoutingKeyError};
pub use settings::{QuarantineScope, Settings, Unrouted};
pub use snapshot::{Counters, Snapshot, Trouble};
pub use timestamp::rfc3339;
