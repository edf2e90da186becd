//! The pure core of Postrider: it decides, and does nothing else.
//!
//! Frames of the replication stream go in ([`Frame`]), messages for the broker come out
//! ([`Window`]), the broker's word goes in ([`Answer`]), and positions that may be acknowledged
//! come out ([`Watermark`]). There is no IO, no clock and no randomness here that is not an argument.

mod frame;
mod lsn;
mod message;
mod watermark;

pub use frame::Frame;
pub use lsn::{Lsn, LsnError, Position};
pub use message::{Answer, Broker, BrokerLimits, HeaderValue, Message, Verdict, Window, WindowEnd, WindowId};
pub use watermark::Watermark;
