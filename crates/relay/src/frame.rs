//! What the slot stream hands to the relay: one frame of the replication protocol.

use bytes::Bytes;

use crate::lsn::Lsn;

/// One message of the logical replication stream (PostgreSQL manual, "Streaming Replication
/// Protocol" and "Logical Replication Message Formats").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A transaction begins; all its changes follow before its [`Frame::Commit`].
    Begin {
        /// The position of the transaction's commit record, known from the start.
        commit_lsn: Lsn,
        /// When it was committed, microseconds since the Unix epoch.
        committed_us: i64,
    },
    /// Any pgoutput message that is not begin, commit or a logical message, undecoded.
    Change(Bytes),
    /// A logical decoding message (`pg_logical_emit_message`): never an event.
    Message {
        /// Whether it belongs to the open transaction.
        transactional: bool,
    },
    /// The open transaction is complete.
    Commit {
        /// The position of the commit record.
        commit_lsn: Lsn,
        /// The position behind the commit record: what is acknowledged.
        end_lsn: Lsn,
    },
    /// The server tells how far it has sent.
    Keepalive {
        /// The position up to which the server has sent.
        wal_end: Lsn,
        /// The server wants an answer now (the client has given it already).
        reply_requested: bool,
    },
}
