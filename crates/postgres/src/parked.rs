//! The quarantine as an operator sees it: rows page by page, one in full, and how many there are.
//!
//! Invariants: what is read at once is bounded by the page, whatever the table holds; a body leaves the server
//! only when it is asked for.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use postrider_relay::Position;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::admin::{Admin, LOOK_LIMIT};
use crate::columns;
use crate::error::Error;
use crate::failure::Doing;
use crate::filter::{Condition, Filter};

/// One row of the quarantine without its message; serialized, it is the element of `quarantine list --json`.
///
/// A text of more than 1,024 characters is cut there and ends in `…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedEvent {
    /// Where the event stands in the log, such as `0/16B3748/3`.
    #[serde(with = "place")]
    pub position: Position,
    /// `parked`, `released` (being sent), `delivered` or `discarded`.
    pub state: String,
    /// `key`: the later events of its aggregate wait behind it; `event`: none do.
    pub scope: String,
    /// Why it was parked, in one word.
    pub reason: String,
    /// The same in more words.
    pub detail: String,
    /// How often it was tried.
    pub attempts: i64,
    /// The aggregate's type; null where the row does not tell.
    pub aggregate_type: Option<String>,
    /// The aggregate's id; null where the row does not tell.
    pub aggregate_id: Option<String>,
    /// The event's id.
    pub message_id: Option<String>,
    /// The event's type.
    pub event_type: Option<String>,
    /// Where it goes.
    pub exchange: Option<String>,
    /// By which key.
    pub routing_key: Option<String>,
    /// The size of its body; null where there was no readable payload.
    pub bytes: Option<i64>,
    /// When its transaction was committed (RFC 3339, as all times here).
    pub committed_at: String,
    /// When it was parked.
    pub parked_at: String,
    /// When its state last changed.
    pub changed_at: String,
    /// Who asked for that.
    pub changed_by: Option<String>,
}

/// One row of the quarantine in full, nothing cut.
#[derive(Clone, Debug)]
pub struct ParkedMessage {
    /// What a list shows of it.
    pub event: ParkedEvent,
    /// What else is sent, and why it is there.
    pub rest: MessageRest,
    /// The body, if it was asked for and there is one.
    pub body: Option<Vec<u8>>,
}

/// What a list does not show of a row; serialized, it is part of the element of `quarantine show --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MessageRest {
    /// The property `correlation_id`.
    pub correlation_id: Option<String>,
    /// The property `content_type`.
    pub content_type: Option<String>,
    /// The property `timestamp`, seconds since the Unix epoch.
    pub timestamp_s: Option<i64>,
    /// The headers as the table has them.
    pub headers: Box<RawValue>,
    /// Of a row that could not be mapped: its columns but the payload.
    pub outbox_row: Option<Box<RawValue>>,
    /// The last request that moved it, by its id in `postrider.command`.
    pub command_id: Option<i64>,
}

/// How much a filter means, of what is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Rows.
    pub events: u64,
    /// Aggregates.
    pub aggregates: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// What is undelivered, counted up to a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Undelivered {
    /// Rows that wait for a person.
    pub parked: u64,
    /// Rows that are being sent.
    pub released: u64,
    /// Both by their reason.
    pub reasons: BTreeMap<String, u64>,
    /// False if there are more than were counted.
    pub complete: bool,
}

/// A filter may have to look at every row.
pub(crate) const SCAN_LIMIT: Duration = Duration::from_secs(120);

/// Characters of each text in a list: a column may hold a gigabyte, and a page many rows.
const TEXT_MAX: u32 = 1024;

/// How many rows are counted for [`Undelivered`].
const COUNT_MAX: u32 = 100_000;

const UNDELIVERED: &str = "'parked', 'released'";

impl Admin {
    /// Where the next rows stand, at most so many: those parked or released, or those in any state.
    pub async fn parked_positions(
        &self,
        slot: &str,
        filter: &Filter,
        all_states: bool,
        after: Option<Position>,
        rows: u32,
    ) -> Result<Vec<Position>, Error> {
        let mut condition = Condition::of(slot, filter);
        if !all_states {
            condition.in_states(UNDELIVERED);
        }
        if let Some(after) = after {
            condition.behind(after);
        }
        let statement = format!(
            "select q.commit_lsn, q.index from postrider.quarantine q
             where {} order by q.commit_lsn, q.index limit {rows}",
            condition.text()
        );
        let found = self.look_through("list the quarantine", &statement, &condition).await?;
        let position = |row| columns::position(row, 0);
        found.iter().map(position).collect::<Result<_, _>>().map_err(unreadable)
    }

    /// The rows at these positions, in their order.
    pub async fn parked_events(&self, slot: &str, positions: &[Position]) -> Result<Vec<ParkedEvent>, Error> {
        let mut condition = Condition::of_slot(slot);
        condition.at_positions(positions);
        let statement = format!(
            "select {} from postrider.quarantine q where {} order by q.commit_lsn, q.index",
            event_json(Some(TEXT_MAX)),
            condition.text()
        );
        let found = self.look_through("list the quarantine", &statement, &condition).await?;
        found.iter().map(|row| document(row, 0)).collect()
    }

    /// One row in full, with its body if that is asked for; None if there is no such row.
    pub async fn parked_message(
        &self,
        slot: &str,
        position: Position,
        body: bool,
    ) -> Result<Option<ParkedMessage>, Error> {
        let mut condition = Condition::of_slot(slot);
        condition.at_positions(&[position]);
        let statement = format!(
            "select {}, json_build_object('correlation_id', q.correlation_id, 'content_type', q.content_type,
               'timestamp_s', q.timestamp_s, 'headers', q.headers, 'outbox_row', q.outbox_row,
               'command_id', q.command_id)::text, {} from postrider.quarantine q where {}",
            event_json(None),
            if body { "q.body" } else { "null::bytea" },
            condition.text()
        );
        let found = self.look_through("show the quarantined event", &statement, &condition).await?;
        let Some(row) = found.first() else { return Ok(None) };
        Ok(Some(ParkedMessage { event: document(row, 0)?, rest: document(row, 1)?, body: row.get(2) }))
    }

    /// How much of what is parked the filter means.
    pub async fn parked_tally(&self, slot: &str, filter: &Filter) -> Result<Tally, Error> {
        let mut condition = Condition::of(slot, filter);
        condition.in_states("'parked'");
        let statement = format!(
            "select count(*), count(distinct q.aggregate_key), coalesce(sum(octet_length(q.body)), 0)::bigint
             from postrider.quarantine q where {}",
            condition.text()
        );
        let found = self.look_through("count the quarantine", &statement, &condition).await?;
        let number = |column| found.first().map_or(0, |row| row.get::<_, i64>(column).cast_unsigned());
        Ok(Tally { events: number(0), aggregates: number(1), bytes: number(2) })
    }

    /// What is parked or released, by reason, counted to 100,000 rows.
    pub async fn undelivered(&self, slot: &str) -> Result<Undelivered, Error> {
        let mut condition = Condition::of_slot(slot);
        condition.in_states(UNDELIVERED);
        let limit = condition.add(i64::from(COUNT_MAX) + 1, Type::INT8);
        let statement = format!(
            "select s.state, s.reason, count(*) from (
               select q.state, q.reason from postrider.quarantine q where {} limit {limit}) s
             group by s.state, s.reason",
            condition.text()
        );
        let parameters = condition.parameters();
        let found = self.0.client.query_typed(&statement, &parameters);
        let found = self.within("count the quarantine", Doing::Operate, LOOK_LIMIT, found).await?;
        let mut counted = Undelivered { parked: 0, released: 0, reasons: BTreeMap::new(), complete: true };
        for row in found {
            let (state, reason, events): (&str, String, i64) = (row.get(0), row.get(1), row.get(2));
            let events = events.cast_unsigned();
            *(if state == "parked" { &mut counted.parked } else { &mut counted.released }) += events;
            *counted.reasons.entry(reason).or_default() += events;
        }
        counted.complete = counted.parked + counted.released <= u64::from(COUNT_MAX);
        Ok(counted)
    }

    pub(crate) async fn look_through(
        &self,
        what: &str,
        statement: &str,
        condition: &Condition,
    ) -> Result<Vec<Row>, Error> {
        let parameters = condition.parameters();
        let found = self.0.client.query_typed(statement, &parameters);
        self.within(what, Doing::Operate, SCAN_LIMIT, found).await
    }
}

/// A [`ParkedEvent`] as a JSON text, made of the row `q`.
pub(crate) fn event_json(text_max: Option<u32>) -> String {
    let text = |column: &str| match text_max {
        Some(max) => format!(
            "'{column}', case when length(q.{column}) > {max} then left(q.{column}, {max}) || '…' \
             else q.{column} end"
        ),
        None => format!("'{column}', q.{column}"),
    };
    let time = |column: &str| {
        let utc = format!("q.{column} at time zone 'UTC'");
        format!("'{column}', to_char({utc}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    };
    let texts = ["detail", "aggregate_type", "aggregate_id", "message_id", "event_type", "exchange"];
    let parts: Vec<String> = texts
        .into_iter()
        .chain(["routing_key", "changed_by"])
        .map(text)
        .chain(["committed_at", "parked_at", "changed_at"].map(time))
        .collect();
    format!(
        "json_build_object('position', q.commit_lsn::text || '/' || q.index, 'state', q.state,
           'scope', q.scope, 'reason', q.reason, 'attempts', q.attempts, 'bytes', octet_length(q.body),
           {})::text",
        parts.join(", ")
    )
}

fn unreadable(why: impl Display) -> Error {
    Error::Outage(format!("read the quarantine: {why}"))
}

/// Reads the JSON text in this column.
pub(crate) fn document<'a, T: Deserialize<'a>>(row: &'a Row, column: usize) -> Result<T, Error> {
    serde_json::from_str(row.get(column)).map_err(|e| unreadable(format!("read the server's answer: {e}")))
}

/// A position as its text.
mod place {
    use postrider_relay::Position;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(position: &Position, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(position)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Position, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
