//! The RabbitMQ side of Postrider: windows out, answers back. It cannot name an LSN.
//!
//! A [`Publisher`] owns one supervised connection in confirm mode and says how it is ([`State`]) and what
//! the broker said about each window ([`postrider_relay::Answer`]). It decides nothing: retries, order and
//! debts are the relay's.
//!
//! A [`ParkingQueue`] is for operators: it looks at what consumers have parked, and sends it back.
//!
//! Invariant: a message is [`Confirmed`](postrider_relay::Verdict::Confirmed) only if the broker confirmed it
//! *and* did not return it; what is not known is `Unanswered`.
//!
//! lapin logs each returned message with its body (target `lapin::returned_messages`, WARN), and its own view
//! of each lost connection: whoever installs a log subscriber turns the target `lapin` off. All that is worth
//! knowing is in the [`Outage`].

mod backoff;
mod clock;
mod ending;
mod endpoint;
mod envelope;
mod exchange;
mod flight;
mod lanes;
mod link;
mod outage;
mod parking;
mod publisher;
mod session;
mod settings;
mod settle;
mod supervisor;
mod tls;

pub use endpoint::{Endpoint, UrlError};
pub use outage::{Outage, OutageKind};
pub use parking::{ParkedMessage, ParkingError, ParkingQueue, Way};
pub use publisher::{Event, Publisher, State};
pub use settings::{Backoff, Settings};
