//! The Postgres side of Postrider: the slot stream, and the statements around it.
//!
//! [`Server`] says where and how; [`Admin`] asks and mends over SQL; [`SlotStream`] turns the slot into
//! [`postrider_relay::Frame`]s and acknowledges nothing but a [`postrider_relay::Watermark`].
//! Nothing here creates a slot but `init` and `slot create`: a slot made in silence hides a gap.

mod admin;
mod bridge;
mod columns;
mod creation;
mod doctor;
mod error;
mod failure;
mod filter;
mod identity;
mod inbox;
mod inbox_rows;
mod init;
mod inspect;
mod parked;
mod quarantine;
mod record;
mod request;
mod schema;
mod server;
mod silence;
mod slot;
mod stream;
mod subject;
mod tls;
mod url;
mod verdict;
mod wire;

pub use admin::Admin;
pub use creation::Blocker;
pub use doctor::{Severity, Symptom};
pub use error::{Error, Reason, Stop};
pub use filter::Filter;
pub use inbox_rows::{InboxFilter, InboxRecord, InboxRow};
pub use init::{Init, Planned, Progress};
pub use inspect::{Inspection, PublicationFacts, QuarantineFacts, Record, SlotFacts, TableFacts};
pub use parked::{MessageRest, ParkedEvent, ParkedMessage, Tally, Undelivered};
pub use quarantine::Quarantine;
pub use request::{Advance, Asked, Ending, Outcome};
pub use schema::{ROLES_SQL, SCHEMA_SQL};
pub use server::Server;
pub use slot::{AdvanceTo, Slot};
pub use stream::SlotStream;
pub use subject::{NameError, Subject, TableName};
pub use url::UrlError;
