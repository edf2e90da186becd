//! One event on its way: what it is, who is owed, and what it has been through.

use std::sync::Arc;

use crate::ledger::Ticket;
use crate::lsn::Position;
use crate::mapping::AggregateKey;
use crate::message::Message;
use crate::quarantine::{Draft, ParkedKey, Released, Scope};
use crate::reason::Reason;

/// One event that is owed.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) position: Position,
    pub(crate) content: Content,
    pub(crate) debt: Debt,
    /// When its transaction was committed, microseconds since the Unix epoch.
    pub(crate) committed_us: i64,
    /// What it holds in memory.
    pub(crate) bytes: usize,
    /// The size of its header frame.
    pub(crate) header_bytes: usize,
    /// Rejections so far, by which it waits the longer; an outage is none.
    pub(crate) failures: u32,
    /// Those of them that count as attempts: a nack is back-pressure, and is none.
    pub(crate) attempts: u32,
    /// How often the broker closed the connection while it was out.
    pub(crate) strikes: u32,
    /// It has closed a channel or a connection before, so it goes out alone.
    pub(crate) alone: bool,
    /// It should be in quarantine, but the relay holds.
    pub(crate) held: bool,
    /// Why it cannot be delivered, once that is known.
    pub(crate) poison: Option<Box<Poison>>,
}

/// What there is to send.
#[derive(Debug)]
pub(crate) enum Content {
    /// A complete message.
    Message(Arc<Message>),
    /// What could be made of a row that is none.
    Refused(Box<Draft>),
}

/// Who is owed.
#[derive(Debug)]
pub(crate) enum Debt {
    /// The slot.
    Ticket(Ticket),
    /// A released row of the quarantine.
    Row(Scope, Option<ParkedKey>),
}

/// Why an event cannot be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Poison {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
}

impl Pending {
    /// An event of the stream that became a message.
    pub(crate) fn event(message: Message, ticket: Ticket, committed_us: i64) -> Pending {
        Pending::new(
            message.position,
            Content::Message(Arc::new(message)),
            Debt::Ticket(ticket),
            committed_us,
        )
    }

    /// An event of the stream that did not.
    pub(crate) fn refused(
        position: Position,
        draft: Box<Draft>,
        poison: Poison,
        ticket: Ticket,
        committed_us: i64,
    ) -> Pending {
        let pending = Pending::new(position, Content::Refused(draft), Debt::Ticket(ticket), committed_us);
        Pending { poison: Some(Box::new(poison)), ..pending }
    }

    /// An event from the table.
    pub(crate) fn released(row: Released, message_bytes_max: usize) -> Pending {
        let Released { position, scope, aggregate, committed_us, draft, fault } = row;
        let debt = Debt::Row(scope, aggregate);
        let fault = fault.map(|detail| (Reason::BadHeader, detail));
        match fault.map_or_else(|| draft.complete(position, message_bytes_max), Err) {
            Ok(message) => Pending::new(position, Content::Message(Arc::new(message)), debt, committed_us),
            Err((reason, detail)) => {
                let poison = Some(Box::new(Poison { reason, detail }));
                let content = Content::Refused(Box::default());
                Pending { poison, ..Pending::new(position, content, debt, committed_us) }
            }
        }
    }

    fn new(position: Position, content: Content, debt: Debt, committed_us: i64) -> Pending {
        let (held, header_bytes) = match &content {
            Content::Message(message) => (message.memory_bytes(), message.header_frame_bytes()),
            Content::Refused(draft) => (draft.memory_bytes(), 0),
        };
        Pending {
            position,
            content,
            debt,
            committed_us,
            bytes: size_of::<Pending>() + held,
            header_bytes,
            failures: 0,
            attempts: 0,
            strikes: 0,
            alone: false,
            held: false,
            poison: None,
        }
    }

    /// It has failed, and that counts.
    pub(crate) fn attempt(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.attempts = self.attempts.saturating_add(1);
    }

    /// The message, if there is one.
    pub(crate) fn message(&self) -> Option<&Arc<Message>> {
        match &self.content {
            Content::Message(message) => Some(message),
            Content::Refused(_) => None,
        }
    }

    /// What the quarantine keeps.
    pub(crate) fn draft(&self) -> Draft {
        match &self.content {
            Content::Message(message) => Draft::from(&**message),
            Content::Refused(draft) => (**draft).clone(),
        }
    }
}

/// An event that leaves for the quarantine.
#[derive(Debug)]
pub(crate) struct Condemned {
    pub(crate) pending: Pending,
    pub(crate) aggregate: Option<AggregateKey>,
    /// The aggregate by whose order it is sent one day; `None` where it stands for itself.
    pub(crate) key: Option<ParkedKey>,
    pub(crate) scope: Scope,
    pub(crate) poison: Poison,
}
