//! Why an event is not delivered: one word each, the same in logs, metrics and quarantine.

use std::fmt;

/// Why an event is refused, retried or held. [`Reason::as_str`] is the metrics label; a word, once
/// released, never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A required column is not in the table (or not in the publication's column list).
    MissingColumn,
    /// A required column is NULL.
    NullColumn,
    /// A column holds what its header or property cannot be made from.
    BadValue,
    /// The row's own headers cannot be carried.
    BadHeader,
    /// A short string (AMQP 0-9-1 section 4.2.5.3) would be over 255 bytes.
    ShortString,
    /// The body is over `rabbitmq.message_bytes_max`.
    MessageTooLarge,
    /// The header frame is over the negotiated `frame_max`.
    HeaderTooLarge,
    /// Returned: no queue is bound for its route.
    Unrouted,
    /// The broker rejected it (`basic.nack`).
    Nacked,
    /// The broker closes the channel over it.
    ChannelClosed,
    /// The broker closes the connection over it.
    ConnectionClosed,
    /// No confirm came within `rabbitmq.confirm_timeout_ms`.
    Unconfirmed,
    /// Nothing is wrong with it: an earlier event of its aggregate is parked.
    Follower,
}

impl Reason {
    /// Every reason, in the order of an event's way.
    pub const ALL: [Reason; 13] = [
        Reason::MissingColumn,
        Reason::NullColumn,
        Reason::BadValue,
        Reason::BadHeader,
        Reason::ShortString,
        Reason::MessageTooLarge,
        Reason::HeaderTooLarge,
        Reason::Unrouted,
        Reason::Nacked,
        Reason::ChannelClosed,
        Reason::ConnectionClosed,
        Reason::Unconfirmed,
        Reason::Follower,
    ];

    /// The word for logs, metrics and quarantine.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::MissingColumn => "missing_column",
            Reason::NullColumn => "null_column",
            Reason::BadValue => "bad_value",
            Reason::BadHeader => "bad_header",
            Reason::ShortString => "short_string",
            Reason::MessageTooLarge => "message_too_large",
            Reason::HeaderTooLarge => "header_too_large",
            Reason::Unrouted => "unrouted",
            Reason::Nacked => "nacked",
            Reason::ChannelClosed => "channel_closed",
            Reason::ConnectionClosed => "connection_closed",
            Reason::Unconfirmed => "unconfirmed",
            Reason::Follower => "follower",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_once_under_its_own_word() {
        // `Ord` follows the declaration, so a variant left out of ALL breaks the count below.
        assert!(Reason::ALL.is_sorted());
        assert_eq!(Reason::ALL.len(), Reason::Follower as usize + 1);
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
    }
}
