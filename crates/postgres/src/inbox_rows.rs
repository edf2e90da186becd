//! What operators see and do in a consumer's inbox.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::admin::{Admin, LOOK_LIMIT};
use crate::error::Error;
use crate::failure::{Doing, sqlstate};
use crate::schema::RELATION;

/// A message in an inbox; its fields are the keys of `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InboxRow {
    /// Who consumes it.
    pub consumer: String,
    /// Who sent it; empty where ids do not meet.
    pub source: String,
    /// Its id.
    pub message_id: String,
    /// `received`, `processing`, `reconcile` (its worker was not heard of again), `failed` or `completed`.
    pub status: String,
    /// How often it was tried.
    pub attempts: i32,
    /// The worker that has it, or had it last, of two phases.
    pub lease_owner: Option<String>,
    /// When it was first seen (RFC 3339, as all times here).
    pub received_at: String,
    /// When it was completed.
    pub completed_at: Option<String>,
    /// What the worker noted.
    pub outcome: Option<String>,
    /// Why it failed last.
    pub last_error: Option<String>,
}

/// A message in an inbox with everything that stands there; its fields are the keys of `inbox show --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InboxRecord {
    /// What is listed, too.
    #[serde(flatten)]
    pub row: InboxRow,
    /// The hash of its content, in hexadecimal digits; none if it was claimed without content.
    pub content_sha256: Option<String>,
    /// Until when the worker has it.
    pub lease_until: Option<String>,
    /// How often the work of two phases was handed out.
    pub fence: i64,
}

/// Which messages of an inbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxFilter {
    /// Only this consumer's.
    pub consumer: Option<String>,
    /// Only of this id.
    pub message_id: Option<String>,
    /// Completed ones as well.
    pub completed: bool,
}

/// What [`InboxRow`] is read from, in its order.
const COLUMNS: &str = r#"consumer, source, message_id,
    case when status = 'processing' and lease_until <= clock_timestamp() then 'reconcile' else status end,
    attempts, lease_owner,
    to_char(received_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    to_char(completed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), outcome, last_error"#;

/// The rows of the id `$2`, with the columns of the inbox: one look into its primary key for each consumer and source
/// there is, which are found one by one. No index begins with the id, and an inbox can have very many rows.
const OF_ID: &str = "(
    with recursive place (at_consumer, at_source) as (
        (select consumer, source from postrider.inbox order by consumer, source limit 1)
        union all
        select following.consumer, following.source from place, lateral (
            select consumer, source from postrider.inbox
            where (consumer, source) > (at_consumer, at_source) order by consumer, source limit 1) following)
    select found.* from place, lateral (
        select * from postrider.inbox
        where consumer = at_consumer and source = at_source and message_id = $2 limit 1) found) inbox";

const RETRY: &str = "
    update postrider.inbox set status = 'received', attempts = 0, lease_until = null
    where consumer = $1 and source = $2 and message_id = $3
        and (status = 'failed' or status = 'processing' and lease_until <= clock_timestamp())
    returning 1";

impl Admin {
    /// Whether this database has an inbox.
    pub async fn has_inbox(&self) -> Result<bool, Error> {
        Ok(!self.query("look for the inbox", Doing::SeeInbox, RELATION, &["inbox"]).await?.is_empty())
    }

    /// The first messages that the filter means, the oldest first.
    pub async fn inbox_rows(&self, filter: &InboxFilter, limit: u32) -> Result<Vec<InboxRow>, Error> {
        let rows = if filter.message_id.is_some() { OF_ID } else { "postrider.inbox" };
        let statement = format!(
            "select {COLUMNS} from {rows}
             where ($1 is null or consumer = $1) and ($2 is null or message_id = $2)
                 and ($3 = 'all' or status <> 'completed')
             order by received_at limit $4::int"
        );
        let completed = if filter.completed { "all" } else { "" };
        let limit = limit.to_string();
        let parameters =
            [filter.consumer.as_deref(), filter.message_id.as_deref(), Some(completed), Some(&limit)];
        let rows = self.inbox("look into the inbox", Doing::SeeInbox, &statement, &parameters).await?;
        Ok(rows.iter().map(row).collect())
    }

    /// A consumer's message of this id: one for each source, or that of the one source.
    pub async fn inbox_records(
        &self,
        consumer: &str,
        message_id: &str,
        source: Option<&str>,
    ) -> Result<Vec<InboxRecord>, Error> {
        let statement = format!(
            "select {COLUMNS}, encode(content_sha256, 'hex'),
                 to_char(lease_until at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), fence
             from {OF_ID}
             where consumer = $1 and ($3 is null or source = $3)
             order by source limit 100"
        );
        let parameters = [Some(consumer), Some(message_id), source];
        let rows = self.inbox("look into the inbox", Doing::SeeInbox, &statement, &parameters).await?;
        let record = |found: &Row| InboxRecord {
            row: row(found),
            content_sha256: found.get(10),
            lease_until: found.get(11),
            fence: found.get(12),
        };
        Ok(rows.iter().map(record).collect())
    }

    /// Lets a message that failed, or whose worker was not heard of again, be handled afresh: its attempts are
    /// forgotten. False if there is none such.
    pub async fn inbox_retry(&self, consumer: &str, source: &str, message_id: &str) -> Result<bool, Error> {
        let parameters = [consumer, source, message_id];
        let changed = self.query("change the inbox", Doing::ChangeInbox, RETRY, &parameters).await?;
        Ok(!changed.is_empty())
    }

    /// Deletes a batch of completed rows, of one consumer or of all; returns how many.
    ///
    /// # Errors
    /// Also if that reaches into a consumer's duplicate window.
    pub async fn inbox_prune(&self, older_than: Duration, consumer: Option<&str>) -> Result<u64, Error> {
        let age = format!("{} seconds", older_than.as_secs());
        let prune = "select postrider.inbox_prune($1::interval, consumer => $2)::text";
        let pruned = self.inbox("prune the inbox", Doing::CallInbox, prune, &[Some(&age), consumer]).await?;
        Ok(pruned.first().and_then(|row| row.get::<_, &str>(0).parse().ok()).unwrap_or(0))
    }

    /// Asks the inbox with text parameters; none is NULL, and an empty text is a text like any other.
    async fn inbox(
        &self,
        what: &str,
        doing: Doing,
        statement: &str,
        parameters: &[Option<&str>],
    ) -> Result<Vec<Row>, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            parameters.iter().map(|text| (text as &(dyn ToSql + Sync), Type::TEXT)).collect();
        self.within(what, doing, LOOK_LIMIT, self.0.client.query_typed(statement, &typed)).await
    }
}

impl Error {
    /// Whether the server cannot take a value that was asked about (SQLSTATE class 22): others it may.
    pub fn is_about_a_value(&self) -> bool {
        match self {
            Error::Outage(text) => sqlstate(text).is_some_and(|(_, code)| code.starts_with("22")),
            Error::Stop(_) | Error::Standby { .. } => false,
        }
    }
}

fn row(row: &Row) -> InboxRow {
    InboxRow {
        consumer: row.get(0),
        source: row.get(1),
        message_id: row.get(2),
        status: row.get(3),
        attempts: row.get(4),
        lease_owner: row.get(5),
        received_at: row.get(6),
        completed_at: row.get(7),
        outcome: row.get(8),
        last_error: row.get(9),
    }
}
