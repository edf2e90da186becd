//! What is handed to the broker: complete messages in windows, and the answer that comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::lsn::Position;

/// One complete message, ready to publish; `delivery_mode` 2, `mandatory` and `app_id` are constants
/// of the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where the event stands in the log: the header `postrider_position`, unique to the event.
    pub position: Position,
    /// The exchange to publish to; at most 255 bytes, like every short string below.
    pub exchange: Arc<str>,
    /// The routing key.
    pub routing_key: Box<str>,
    /// The property `message_id`.
    pub message_id: Box<str>,
    /// The property `type`.
    pub event_type: Box<str>,
    /// The property `correlation_id`.
    pub correlation_id: Option<Box<str>>,
    /// The property `content_type`.
    pub content_type: Arc<str>,
    /// The property `timestamp`, whole seconds since the Unix epoch.
    pub timestamp_s: Option<u64>,
    /// Every header but `postrider_position`, names unique and at most 255 bytes.
    pub headers: Vec<(Arc<str>, HeaderValue)>,
    /// The body.
    pub body: Bytes,
}

impl Message {
    /// About what the message holds in memory, in bytes: its texts, its body, and the allocations.
    pub fn memory_bytes(&self) -> usize {
        const ALLOCATION: usize = 16;
        let texts =
            [&self.routing_key, &self.message_id, &self.event_type].map(|text| text.len() + ALLOCATION);
        let correlation = self.correlation_id.as_ref().map_or(0, |text| text.len() + ALLOCATION);
        let headers = self.headers.iter().map(|(_, value)| match value {
            HeaderValue::Text(text) => size_of::<(Arc<str>, HeaderValue)>() + text.len() + ALLOCATION,
            HeaderValue::Bool(_) | HeaderValue::Int(_) | HeaderValue::Long(_) => {
                size_of::<(Arc<str>, HeaderValue)>()
            }
        });
        let fixed = size_of::<Self>() + texts.iter().sum::<usize>() + correlation;
        fixed + headers.sum::<usize>() + self.body.len() + 2 * ALLOCATION
    }
}

/// A value in the header table, by its AMQP 0-9-1 type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// `S`, long string (never a short string: RabbitMQ does not accept one in a table).
    Text(Box<str>),
    /// `t`, boolean.
    Bool(bool),
    /// `I`, signed 32-bit integer.
    Int(i32),
    /// `l`, signed 64-bit integer.
    Long(i64),
}

/// Names a window; unique for the life of the process, so that a late answer can never pay for
/// another window's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId(pub u64);

/// Messages that go out together on one channel and are settled together.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its name in the [`Answer`].
    pub id: WindowId,
    /// The messages, in the order in which they are published; never empty. The relay keeps its own
    /// handle on each, so a lost window loses nothing.
    pub messages: Vec<Arc<Message>>,
}

/// What the broker said about a window: cumulative, one verdict for each message in order.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The window this answers.
    pub window: WindowId,
    /// One verdict for each message of the window, in order.
    pub verdicts: Vec<Verdict>,
    /// Why the answer comes now, and what that means for the unanswered.
    pub end: WindowEnd,
    /// From the hand-over to the broker until the last confirm in this answer.
    pub took: Duration,
}

/// The broker's word on one message. Only [`Verdict::Confirmed`] pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Confirmed, and not returned.
    Confirmed,
    /// `basic.nack`: the broker could not take it (a full queue, a died queue process).
    Nacked,
    /// `basic.return`: no queue is bound for its route.
    Returned {
        /// The AMQP reply code, 312 for "no route".
        code: u16,
    },
    /// No word yet, or none any more: see [`WindowEnd`].
    Unanswered,
}

/// Why a window is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowEnd {
    /// Every message has its verdict.
    Complete,
    /// No progress for a while: the lane is free again, the unanswered are still awaited on the
    /// old channel, another answer to the same window follows.
    Stalled,
    /// The unanswered did not come within the confirm timeout; their channel is closed, a late
    /// confirm counts for nothing.
    Overdue,
    /// The server closed the channel (an exception, AMQP 0-9-1 section 1.1): one of the
    /// unanswered is the culprit, the outcome of all of them is unknown.
    ChannelClosed {
        /// The reply code, such as 404.
        code: u16,
        /// The server's text.
        text: String,
    },
    /// The server closed the whole connection with a 50x code while the window was out.
    ConnectionClosed {
        /// The reply code, such as 501.
        code: u16,
        /// The server's text.
        text: String,
    },
    /// The connection is gone for a reason that is not the messages'.
    Disconnected,
}

/// What the relay must know of the broker to hand out windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// No connection.
    Down,
    /// Connected, but the broker takes nothing (`connection.blocked`).
    Blocked,
    /// Connected and willing.
    Ready(BrokerLimits),
}

/// What the connection negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerLimits {
    /// The largest frame, in bytes (`connection.tune`); a header table must fit in one.
    pub frame_max: u32,
}
