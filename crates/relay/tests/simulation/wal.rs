//! The Postgres of the simulation: a log of transactions, a slot, and a walsender.

use bytes::{BufMut, Bytes, BytesMut};
use postrider_relay::{Frame, Lsn, Position};

/// One event: the `seq`th of its aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Event {
    pub(crate) aggregate: u32,
    pub(crate) seq: u32,
    /// Its row cannot be mapped.
    pub(crate) poison: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) commit_lsn: Lsn,
    pub(crate) end_lsn: Lsn,
    /// `None` is a row of another kind: an UPDATE, or an INSERT into another table.
    pub(crate) rows: Vec<Option<Event>>,
    /// Behind its rows, an operator's request.
    pub(crate) command: Option<Command>,
    /// Committed while the publication did not cover the table: the server skips it.
    pub(crate) skipped: bool,
}

/// A row of the table of commands.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) id: u32,
    pub(crate) verb: &'static str,
    pub(crate) argument: String,
}

impl Command {
    /// Asks for these rows.
    pub(crate) fn new(id: u32, verb: &'static str, positions: &[Position]) -> Self {
        let positions: Vec<_> = positions.iter().map(|at| format!("\"{at}\"")).collect();
        let argument = format!("{{\"slot\": \"postrider\", \"positions\": [{}]}}", positions.join(", "));
        Self { id, verb, argument }
    }
}

/// The log and the slot on it.
#[derive(Debug, Default)]
pub(crate) struct Wal {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) end: u64,
    /// What the server has been told.
    pub(crate) reported: Lsn,
    /// What of it survives a crash of the server.
    pub(crate) persisted: Lsn,
    pub(crate) covered: bool,
}

impl Wal {
    pub(crate) fn new() -> Self {
        Self { end: 100, covered: true, ..Self::default() }
    }

    /// Something else is written.
    pub(crate) fn noise(&mut self, bytes: u64) {
        self.end += bytes;
    }

    pub(crate) fn commit(&mut self, rows: Vec<Option<Event>>) {
        self.commit_with(rows, None);
    }

    pub(crate) fn commit_with(&mut self, rows: Vec<Option<Event>>, command: Option<Command>) {
        self.end += 50;
        let commit_lsn = Lsn(self.end);
        self.end += 8;
        self.transactions.push(Transaction {
            commit_lsn,
            end_lsn: Lsn(self.end),
            rows,
            command,
            skipped: !self.covered,
        });
    }

    /// Covers the table from now on; the events skipped until then are forgotten, and returned.
    pub(crate) fn cover_again(&mut self) -> Vec<Event> {
        let mut skipped = Vec::new();
        for transaction in self.transactions.iter_mut().filter(|transaction| transaction.skipped) {
            assert!(transaction.commit_lsn >= self.reported, "a skipped event was passed over");
            skipped.extend(std::mem::take(&mut transaction.rows).into_iter().flatten());
            transaction.command = None;
            transaction.skipped = false;
        }
        self.covered = true;
        skipped
    }

    /// The event at this position, without its poison.
    pub(crate) fn event_at(&self, position: Position) -> Option<Event> {
        let transaction = self.transactions.iter().find(|one| one.commit_lsn == position.commit_lsn)?;
        let event = transaction.rows.get(position.index as usize)?.as_ref()?;
        Some(Event { poison: false, ..*event })
    }

    /// Which transactions a session that starts now is sent.
    pub(crate) fn first_unreported(&self) -> usize {
        self.transactions.iter().take_while(|transaction| transaction.end_lsn <= self.reported).count()
    }
}

/// One replication session.
#[derive(Debug)]
pub(crate) struct Walsender {
    transaction: usize,
    /// 0: its begin is next; n: its row n - 1; behind the last row: its commit.
    step: usize,
    described: bool,
    commands: bool,
}

impl Walsender {
    pub(crate) fn start(wal: &Wal) -> Self {
        Self { transaction: wal.first_unreported(), step: 0, described: false, commands: false }
    }

    pub(crate) fn inside(&self) -> bool {
        self.step > 0
    }

    /// How far everything has been sent.
    pub(crate) fn sent(&self, wal: &Wal) -> Lsn {
        wal.transactions.get(self.transaction).map_or(Lsn(wal.end), |next| Lsn(next.commit_lsn.0 - 1))
    }

    /// The end of the transaction that is being sent.
    pub(crate) fn sending(&self, wal: &Wal) -> Lsn {
        wal.transactions[self.transaction].end_lsn
    }

    pub(crate) fn next(&mut self, wal: &Wal) -> Option<Frame> {
        while wal.transactions.get(self.transaction)?.skipped {
            self.transaction += 1;
        }
        let transaction = &wal.transactions[self.transaction];
        let step = self.step;
        self.step += 1;
        if step == 0 {
            return Some(Frame::Begin { commit_lsn: transaction.commit_lsn, committed_us: 0 });
        }
        if let Some(command) = transaction.command.as_ref().filter(|_| step > transaction.rows.len()) {
            if !self.commands {
                self.commands = true;
                self.step = step;
                return Some(Frame::Change(relation(COMMANDS, "command", &COMMAND_COLUMNS)));
            }
            if step == transaction.rows.len() + 1 {
                return Some(Frame::Change(request(command)));
            }
        }
        if step > transaction.rows.len() {
            self.transaction += 1;
            self.step = 0;
            let (commit_lsn, end_lsn) = (transaction.commit_lsn, transaction.end_lsn);
            return Some(Frame::Commit { commit_lsn, end_lsn });
        }
        if !self.described {
            self.described = true;
            self.step = step;
            return Some(Frame::Change(relation(TABLE, "outbox", &COLUMNS)));
        }
        Some(Frame::Change(match transaction.rows[step - 1] {
            Some(event) => insert(event),
            None => Bytes::from_static(b"U\0\0\0\x07N\0\0"),
        }))
    }
}

const TABLE: u32 = 7;
const COMMANDS: u32 = 8;
const COMMAND_COLUMNS: [(&str, u32); 4] =
    [("id", 20), ("verb", 25), ("argument", 3802), ("requested_by", 25)];
const COLUMNS: [(&str, u32); 7] = [
    ("id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 25),
    ("event_type", 25),
    ("payload", 114),
    ("aggregate_seq", 20),
    ("exchange", 25),
];

/// A relation message of pgoutput (PostgreSQL manual, "Logical Replication Message Formats").
fn relation(id: u32, table: &str, columns: &[(&str, u32)]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(b'R');
    frame.put_u32(id);
    frame.put_slice(b"postrider\0");
    frame.put_slice(table.as_bytes());
    frame.put_slice(b"\0d");
    frame.put_u16(u16::try_from(columns.len()).unwrap());
    for (name, kind) in columns {
        frame.put_u8(0);
        frame.put_slice(name.as_bytes());
        frame.put_u8(0);
        frame.put_u32(*kind);
        frame.put_i32(-1);
    }
    frame.freeze()
}

fn insert(event: Event) -> Bytes {
    let Event { aggregate, seq, poison } = event;
    let id = format!("{aggregate}:{seq}");
    let columns = [
        Some(id.clone()),
        Some("order".to_owned()),
        Some(aggregate.to_string()),
        (!poison).then(|| format!("placed{}", route(event))),
        Some(format!("{{\"seq\":{seq}}}")),
        Some(seq.to_string()),
        (aggregate >= ELSEWHERE).then(|| "elsewhere".to_owned()),
    ];
    row(TABLE, &columns)
}

fn request(command: &Command) -> Bytes {
    let Command { id, verb, argument } = command;
    let columns = [id.to_string(), (*verb).to_owned(), argument.clone(), "operator".to_owned()];
    row(COMMANDS, &columns.map(Some))
}

fn row(relation: u32, columns: &[Option<String>]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(b'I');
    frame.put_u32(relation);
    frame.put_u8(b'N');
    frame.put_u16(u16::try_from(columns.len()).unwrap());
    for column in columns {
        let Some(text) = column else {
            frame.put_u8(b'n');
            continue;
        };
        frame.put_u8(b't');
        frame.put_u32(u32::try_from(text.len()).unwrap());
        frame.put_slice(text.as_bytes());
    }
    frame.freeze()
}

/// From this aggregate on rows name an exchange of their own.
pub(crate) const ELSEWHERE: u32 = 90_000;

/// Several aggregates share a route.
pub(crate) const ROUTES: u32 = 5;

pub(crate) fn route(event: Event) -> u32 {
    event.aggregate % ROUTES
}

/// The event that `message_id` names.
pub(crate) fn event(message_id: &str) -> Event {
    let (aggregate, seq) = message_id.split_once(':').expect("our own id");
    Event { aggregate: aggregate.parse().unwrap(), seq: seq.parse().unwrap(), poison: false }
}
