//! What the server says about the things a relay stands on, in one round trip and cheap enough for
//! every second.
//!
//! The answer is one JSON document: a column that an older server does not have is simply absent
//! (PostgreSQL 14 to 18).

use std::time::Duration;

use postrider_relay::Lsn;
use serde::{Deserialize, Deserializer};

/// One answer: the server, the slot, the publication, the tables, and what is recorded of them.
#[derive(Clone, Debug, Deserialize)]
pub struct Inspection {
    /// The database.
    pub database: String,
    /// The server is a standby: it takes no writes.
    pub in_recovery: bool,
    /// The setting `wal_level`.
    pub wal_level: String,
    /// The end of the WAL; 0/0 on a standby.
    #[serde(deserialize_with = "lsn_or_zero")]
    pub wal_lsn: Lsn,
    /// The setting `wal_sender_timeout`; None if it is off.
    #[serde(rename = "wal_sender_timeout_s", deserialize_with = "seconds")]
    pub wal_sender_timeout: Option<Duration>,
    /// The cluster's identity, decimal.
    pub system_identifier: String,
    /// The timeline that is written; None on a standby.
    pub timeline: Option<i32>,
    /// When all statistics were last reset, by `pg_stat_reset_shared` or by a crash.
    pub stats_epoch: Option<String>,
    /// The slot, if it exists.
    pub slot: Option<SlotFacts>,
    /// The publication, if it exists.
    pub publication: Option<PublicationFacts>,
    /// The outbox tables, in the subject's order.
    pub tables: Vec<TableFacts>,
    /// The row of `postrider.relay` for the slot.
    pub record: Option<Record>,
    /// The table `postrider.relay` exists.
    #[serde(default)]
    pub schema: bool,
    /// The table `postrider.quarantine`, if it exists.
    pub quarantine: Option<QuarantineFacts>,
    /// Who asks.
    pub role: String,
}

/// A row of `pg_replication_slots`, and what other views say about the slot.
#[derive(Clone, Debug, Deserialize)]
pub struct SlotFacts {
    /// The output plugin; None for a physical slot.
    pub plugin: Option<String>,
    /// The database; None for a physical slot.
    pub database: Option<String>,
    /// Dropped at the end of the session that made it.
    pub temporary: bool,
    /// The process that uses it.
    pub active_pid: Option<i32>,
    /// The oldest WAL it keeps.
    #[serde(default, deserialize_with = "lsn")]
    pub restart_lsn: Option<Lsn>,
    /// What its consumer has confirmed.
    #[serde(default, deserialize_with = "lsn")]
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of WAL until the slot may be lost; None where there is no limit.
    pub safe_wal_size: Option<i64>,
    /// PostgreSQL 16: invalidated by a conflict.
    #[serde(default)]
    pub conflicting: Option<bool>,
    /// PostgreSQL 17: why it is invalidated.
    #[serde(default)]
    pub invalidation_reason: Option<String>,
    /// PostgreSQL 17: kept up on standbys.
    #[serde(default)]
    pub failover: Option<bool>,
    /// PostgreSQL 17: it came from a primary that this server has replaced.
    #[serde(default)]
    pub synced: Option<bool>,
    /// How many transactions ago its `catalog_xmin` was.
    pub catalog_xmin_age: Option<i64>,
    /// Transactions decoded since the slot was created or the statistics were reset.
    pub decoded_txns: Option<i64>,
    /// When the slot's own statistics were reset by hand; None since it was created.
    pub stats_reset: Option<String>,
    /// How far its walsender has sent; None where it has none, and for a role without `pg_read_all_stats`.
    #[serde(default, deserialize_with = "lsn")]
    pub sent_lsn: Option<Lsn>,
}

/// A row of `pg_publication`.
#[derive(Clone, Debug, Deserialize)]
pub struct PublicationFacts {
    /// Its identity: another one after it was dropped and created again.
    pub oid: i64,
    /// How many transactions ago its row was last written.
    pub xmin_age: i64,
    /// It publishes inserts.
    pub insert: bool,
    /// It publishes the changes of partitions as those of their root.
    pub via_root: bool,
}

/// An outbox table.
#[derive(Clone, Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each a column of the catalog")]
pub struct TableFacts {
    /// It exists, as an ordinary or partitioned table.
    pub exists: bool,
    /// It has partitions.
    pub partitioned: bool,
    /// Its rows are in the WAL (neither unlogged nor temporary).
    pub logged: bool,
    /// The publication covers it.
    pub covered: bool,
    /// The publication has a row filter or a column list on it.
    pub narrowed: bool,
}

/// The table of what could not be delivered.
#[derive(Clone, Debug, Deserialize)]
pub struct QuarantineFacts {
    /// Who asks may read and write it as a relay does.
    pub granted: bool,
}

/// A row of `postrider.relay`: the identity of a slot, and where its last relay left it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Record {
    /// The publication's oid when the slot was created.
    pub publication_oid: i64,
    /// The cluster's identity.
    pub system_identifier: String,
    /// The timeline when a relay last started.
    pub timeline: i32,
    /// Where the slot began.
    #[serde(deserialize_with = "lsn_or_zero")]
    pub slot_lsn: Lsn,
    /// Where the slot stood when its last relay drained; None while one runs, and after one was killed.
    #[serde(default, deserialize_with = "lsn")]
    pub watermark: Option<Lsn>,
    /// Transactions that were decoded for certain, in the statistics of `stats_epoch`.
    pub decoded_txns: i64,
    /// [`Inspection::stats_epoch`] when `decoded_txns` was written.
    pub stats_epoch: Option<String>,
}

pub(crate) fn lsn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Lsn>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

fn lsn_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
    Ok(lsn(deserializer)?.unwrap_or_default())
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Ok((seconds > 0.0).then(|| Duration::from_secs_f64(seconds)))
}

/// The statement: $1 slot, $2 publication, $3 schemas, $4 tables. `recorded`: `postrider.relay` exists.
pub(crate) fn statement(version: u32, recorded: bool) -> String {
    let (by_schema, narrowed) = if version >= 15 {
        (
            "or exists (select from pg_publication_namespace n \
                        where n.pnpubid = p.oid and n.pnnspid = c.relnamespace)",
            "m.prqual is not null or m.prattrs is not null",
        )
    } else {
        ("", "false")
    };
    let record = if recorded {
        "(select to_jsonb(r) from postrider.relay r where r.slot = $1), 'schema', true"
    } else {
        "null, 'schema', false"
    };
    format!(
        "
select jsonb_build_object(
  'database', current_database(),
  'in_recovery', pg_is_in_recovery(),
  'wal_level', current_setting('wal_level'),
  'wal_lsn', case when not pg_is_in_recovery() then pg_current_wal_lsn() end,
  'wal_sender_timeout_s', extract(epoch from current_setting('wal_sender_timeout')::interval),
  'system_identifier', (select system_identifier::text from pg_control_system()),
  'timeline', case when not pg_is_in_recovery()
    then ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer end,
  'stats_epoch', (select stats_reset from pg_stat_archiver),
  'slot', (
    select to_jsonb(s) || jsonb_build_object('catalog_xmin_age', age(s.catalog_xmin),
      'decoded_txns', t.total_txns, 'stats_reset', t.stats_reset, 'sent_lsn', w.sent_lsn)
    from pg_replication_slots s
    left join pg_stat_replication_slots t on t.slot_name = s.slot_name
    left join pg_stat_get_wal_senders() w on w.pid = s.active_pid
    where s.slot_name = $1::text),
  'publication', (
    select jsonb_build_object('oid', p.oid::bigint, 'xmin_age', age(p.xmin),
      'insert', p.pubinsert, 'via_root', p.pubviaroot)
    from pg_publication p where p.pubname = $2::text),
  'tables', (
    select jsonb_agg(jsonb_build_object(
      'exists', c.oid is not null,
      'partitioned', coalesce(c.relkind = 'p', false),
      'logged', coalesce(c.relpersistence = 'p', false),
      'covered', coalesce(p.puballtables or m.oid is not null or (c.relispartition and exists (
          select from pg_partition_ancestors(c.oid) a
          join pg_publication_rel r on r.prrelid = a.relid and r.prpubid = p.oid)) {by_schema}, false),
      'narrowed', {narrowed}) order by t.at)
    from unnest($3::text[], $4::text[]) with ordinality as t(schema, name, at)
    left join pg_namespace ns on ns.nspname = t.schema
    left join pg_class c on c.relnamespace = ns.oid and c.relname = t.name and c.relkind in ('r', 'p')
    left join pg_publication p on p.pubname = $2::text
    left join pg_publication_rel m on m.prpubid = p.oid and m.prrelid = c.oid),
  'quarantine', (
    select jsonb_build_object('granted', has_schema_privilege(c.relnamespace, 'usage')
      and has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
      and has_table_privilege(c.oid, 'update'))
    from pg_namespace n
    join pg_class c on c.relnamespace = n.oid and c.relname = 'quarantine' and c.relkind in ('r', 'p')
    where n.nspname = 'postrider'),
  'role', current_user,
  'record', {record})::text"
    )
}
