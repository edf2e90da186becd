//! What stands in `postrider.quarantine`: events that are accounted for though the broker has not taken them.
//!
//! The table is read by SQL, as an operator would; whatever the relay says of it elsewhere counts for nothing.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use tokio_postgres::Client;

use crate::consumer::Position;

/// The rows of one slot, in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    rows: Vec<Kept>,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where the event stands in the log.
    pub position: Position,
    /// The event's id; `None` where the outbox row did not give it.
    pub message_id: Option<String>,
    /// What has become of it.
    pub state: State,
    /// Whether later events of its aggregate have to wait behind it (scope `key`).
    pub holds_back: bool,
    /// Why it is there, one word.
    pub reason: String,
    /// Attempts made.
    pub attempts: i32,
}

/// What has become of an event in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has asked for it.
    Parked,
    /// It is being sent.
    Released,
    /// The broker has confirmed it, by the relay's word: it has to have arrived.
    Delivered,
    /// An operator has given it up.
    Discarded,
}

impl Quarantine {
    /// Reads it.
    pub async fn read(sql: &Client, slot: &str) -> Result<Self> {
        let query = "select commit_lsn, index, message_id, state, scope, reason, attempts
                       from postrider.quarantine where slot = $1 order by commit_lsn, index";
        let rows = sql.query(query, &[&slot]).await.context("read the quarantine")?;
        let kept = rows.iter().map(|row| {
            Ok(Kept {
                position: Position { commit_lsn: row.get(0), index: row.get::<_, i64>(1).try_into()? },
                message_id: row.get(2),
                state: State::of(row.get(3))?,
                holds_back: row.get::<_, &str>(4) == "key",
                reason: row.get(5),
                attempts: row.get(6),
            })
        });
        Ok(Self { rows: kept.collect::<Result<_>>()? })
    }

    /// The rows, in the order of the log.
    pub fn rows(&self) -> &[Kept] {
        &self.rows
    }

    /// The rows in this state.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = &Kept> {
        self.rows.iter().filter(move |row| row.state == state)
    }

    /// The rows that nothing has become of yet.
    pub fn undelivered(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.state, State::Parked | State::Released)).count()
    }

    /// The row of the event with this id.
    pub fn of(&self, message_id: &str) -> Option<&Kept> {
        self.rows.iter().find(|row| row.message_id.as_deref() == Some(message_id))
    }
}

impl FromIterator<Kept> for Quarantine {
    fn from_iter<I: IntoIterator<Item = Kept>>(rows: I) -> Self {
        Self { rows: rows.into_iter().collect() }
    }
}

impl State {
    fn of(word: &str) -> Result<Self> {
        Ok(match word {
            "parked" => State::Parked,
            "released" => State::Released,
            "delivered" => State::Delivered,
            "discarded" => State::Discarded,
            other => bail!("read a state of the quarantine: {other:?} is none"),
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Parked => "parked",
            State::Released => "released",
            State::Delivered => "delivered",
            State::Discarded => "discarded",
        })
    }
}
