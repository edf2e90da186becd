//! What an operator asks of the relay about parked events, and what became of it.
//!
//! Invariants: a request is one transaction, chosen and written by one statement, so that it says what it means
//! though the quarantine changes meanwhile; the row in `postrider.command` holds at most a thousand entries.

use postrider_relay::{Lsn, Verb};
use serde::Deserialize;
use tokio_postgres::types::{PgLsn, ToSql, Type};

use crate::admin::Admin;
use crate::error::Error;
use crate::failure::Doing;
use crate::filter::{Condition, Filter};
use crate::parked::{ParkedEvent, SCAN_LIMIT, document, event_json};

/// A request that is written.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its rows in `postrider.command`; none if the filter means nothing that is parked.
    pub commands: Vec<i64>,
    /// The parked events that the filter means.
    pub events: u64,
    /// Parked events of their aggregates that go with them.
    pub followers: u64,
    /// The aggregates that it names.
    pub aggregates: u64,
    verb: Verb,
    slot: String,
    /// The log's end when the rows were chosen: what is parked from behind it is not meant.
    chosen_lsn: PgLsn,
    /// The log's end behind the request.
    written_lsn: Lsn,
}

/// How far the relay is with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Events that are being sent.
    pub released: u64,
    /// Events that are parked as they were.
    pub untouched: u64,
    /// The slot has passed the request: what is untouched stays so.
    pub passed: bool,
}

/// Events of a request that ended alike.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Ending {
    /// Their state.
    pub state: String,
    /// Whether this request brought them there.
    pub ours: bool,
    /// Why they are parked; None in another state.
    pub reason: Option<String>,
    /// How many.
    pub events: u64,
}

/// What became of one event of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The event.
    pub event: ParkedEvent,
    /// Whether this request brought it there.
    pub ours: bool,
}

/// Entries in one row of `postrider.command`.
const ENTRIES_MAX: u32 = 1000;

/// What the rows of a request name: $1 its slot, $2 its ids, $3 where the log ended when they were chosen.
const NAMED: &str = "
with asked as materialized (
  select c.argument, c.requested_at from postrider.command c where c.id = any($2)),
keys as materialized (
  select distinct decode(k, 'hex') as key
  from asked a, jsonb_array_elements_text(a.argument -> 'aggregates') k),
places as materialized (
  select distinct (split_part(p, '/', 1) || '/' || split_part(p, '/', 2))::pg_lsn as commit_lsn,
    split_part(p, '/', 3)::bigint as index
  from asked a, jsonb_array_elements_text(a.argument -> 'positions') p)";

/// The rows that are named and undelivered, each found by an index: there may be no statistics yet to make the
/// server choose that by itself.
const UNDELIVERED: &str = "
  select q.* from keys k cross join lateral (
    select q.commit_lsn, q.index, q.state, q.reason, q.command_id from postrider.quarantine q
    where q.slot = $1 and q.aggregate_key = k.key and q.state in ('parked', 'released')
      and q.scope = 'key' and q.commit_lsn <= $3
    offset 0) q
  union all
  select q.* from places p cross join lateral (
    select q.commit_lsn, q.index, q.state, q.reason, q.command_id from postrider.quarantine q
    where q.slot = $1 and q.commit_lsn = p.commit_lsn and q.index = p.index
      and q.state in ('parked', 'released')
    offset 0) q";

/// The rows that are named and settled since they were, by whomever.
const SETTLED: &str = "
  select q.commit_lsn, q.index, q.state, q.reason, q.command_id from postrider.quarantine q
  where q.slot = $1 and q.state in ('delivered', 'discarded')
    and q.changed_at >= (select min(a.requested_at) from asked a)
    and (q.command_id = any($2)
      or ((q.commit_lsn, q.index) in (select p.commit_lsn, p.index from places p)) is true
      or q.scope = 'key' and q.commit_lsn <= $3 and (q.aggregate_key in (select k.key from keys k)) is true)";

impl Admin {
    /// Asks the relay of this slot to follow `verb` for what is parked and the filter means.
    pub async fn ask(&self, slot: &str, verb: Verb, filter: &Filter) -> Result<Asked, Error> {
        let mut condition = Condition::of(slot, filter);
        condition.in_states("'parked'");
        let whole = match verb {
            Verb::Retry => true,
            // Exactly what the filter means, and that is whole aggregates only if it asks for nothing else.
            Verb::Discard => filter.is_by_aggregate(),
        };
        let word = condition.add(verb.as_str(), Type::TEXT);
        let whole = condition.add(whole, Type::BOOL);
        let statement = format!(
            "
with chosen as materialized (
  select q.commit_lsn, q.index, {whole} and q.scope = 'key' and q.aggregate_key is not null as whole,
    q.aggregate_key as key
  from postrider.quarantine q where {}),
keys as materialized (select distinct c.key from chosen c where c.whole),
entries as (
  select 'aggregates' as list, encode(k.key, 'hex') as entry from keys k
  union all
  select 'positions', c.commit_lsn::text || '/' || c.index from chosen c where not c.whole),
parts as (
  select e.list, e.entry, (row_number() over (order by e.list, e.entry) - 1) / {ENTRIES_MAX} as part
  from entries e),
asked as (
  insert into postrider.command (verb, argument)
  select {word}, jsonb_build_object('slot', $1,
    'aggregates', coalesce(jsonb_agg(p.entry) filter (where p.list = 'aggregates'), '[]'),
    'positions', coalesce(jsonb_agg(p.entry) filter (where p.list = 'positions'), '[]'))
  from parts p group by p.part order by p.part
  returning id)
select (select coalesce(array_agg(a.id order by a.id), '{{}}') from asked a),
  (select count(*) from chosen), (select count(*) from keys),
  (select coalesce(sum(q.parked), 0)::bigint from keys k cross join lateral (
     select count(*) as parked from postrider.quarantine q
     where q.slot = $1 and q.aggregate_key = k.key and q.state = 'parked' and q.scope = 'key') q)
    - (select count(*) from chosen c where c.whole),
  pg_current_wal_insert_lsn()",
            condition.text()
        );
        let rows = self.look_through("ask the relay", &statement, &condition).await?;
        let row = rows.first().ok_or_else(|| Error::Outage("ask the relay: no answer".to_owned()))?;
        let number = |column| row.get::<_, i64>(column).cast_unsigned();
        // Only now is the end of the log behind the commit.
        let end = "select pg_current_wal_insert_lsn()::text";
        let end = self.query("look at the log's end", Doing::Operate, end, &[]).await?;
        let end = end.first().and_then(|row| row.get::<_, &str>(0).parse().ok());
        Ok(Asked {
            commands: row.get(0),
            events: number(1),
            aggregates: number(2),
            followers: number(3),
            verb,
            slot: slot.to_owned(),
            chosen_lsn: row.get(4),
            written_lsn: end.ok_or_else(|| Error::Outage("look at the log's end: no answer".to_owned()))?,
        })
    }

    /// How far the relay is; looks only at what is undelivered.
    pub async fn advance(&self, asked: &Asked) -> Result<Advance, Error> {
        let statement = format!(
            "{NAMED},
             undelivered as ({UNDELIVERED})
             select count(*) filter (where u.state = 'released'),
               count(*) filter (where u.state = 'parked' and (u.command_id = any($2)) is not true),
               (select s.confirmed_flush_lsn::text from pg_replication_slots s where s.slot_name = $1)
             from undelivered u"
        );
        let rows = self.follow("follow the request", asked, &statement).await?;
        let row = rows.first().ok_or_else(|| Error::Outage("follow the request: no answer".to_owned()))?;
        let confirmed: Option<&str> = row.get(2);
        let confirmed: Option<Lsn> = confirmed.and_then(|lsn| lsn.parse().ok());
        Ok(Advance {
            released: row.get::<_, i64>(0).cast_unsigned(),
            untouched: row.get::<_, i64>(1).cast_unsigned(),
            passed: confirmed.is_some_and(|lsn| lsn >= asked.written_lsn),
        })
    }

    /// What became of all its events, counted.
    pub async fn endings(&self, asked: &Asked) -> Result<Vec<Ending>, Error> {
        let statement = format!(
            "{NAMED}
             select json_build_object('state', e.state, 'ours', e.ours, 'reason', e.reason,
               'events', count(*))::text
             from (select q.state, (q.command_id = any($2)) is true as ours,
                     case when q.state = 'parked' then q.reason end as reason
                   from ({UNDELIVERED} union all {SETTLED}) q) e
             group by e.state, e.ours, e.reason order by e.state, e.ours, e.reason"
        );
        let rows = self.follow("count what became of the request", asked, &statement).await?;
        rows.iter().map(|row| document(row, 0)).collect()
    }

    /// What became of its events one by one, at most so many; those first that are not in the wanted state.
    pub async fn outcomes(&self, asked: &Asked, rows: u32) -> Result<Vec<Outcome>, Error> {
        let wanted = match asked.verb {
            Verb::Retry => "delivered",
            Verb::Discard => "discarded",
        };
        let statement = format!(
            "{NAMED},
             first as materialized (
               select q.* from ({UNDELIVERED} union all {SETTLED}) q
               order by q.state = '{wanted}', q.commit_lsn, q.index limit {rows})
             select {}, (s.command_id = any($2)) is true
             from first s join postrider.quarantine q
               on q.slot = $1 and (q.commit_lsn, q.index) = (s.commit_lsn, s.index)
             order by s.state = '{wanted}', s.commit_lsn, s.index",
            event_json(Some(256))
        );
        let rows = self.follow("look what became of the request", asked, &statement).await?;
        rows.iter().map(|row| Ok(Outcome { event: document(row, 0)?, ours: row.get(1) })).collect()
    }

    async fn follow(
        &self,
        what: &str,
        asked: &Asked,
        statement: &str,
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&asked.slot, Type::TEXT),
            (&asked.commands, Type::INT8_ARRAY),
            (&asked.chosen_lsn, Type::PG_LSN),
        ];
        let found = self.0.client.query_typed(statement, &parameters);
        self.within(what, Doing::Operate, SCAN_LIMIT, found).await
    }
}
