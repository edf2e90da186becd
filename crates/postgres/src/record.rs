//! What is written to `postrider.relay`, and when: the identity that [`Inspection::verdict`] compares.
//!
//! A row is written when the slot is created, when a relay starts and when it drains, and in between
//! at most once for each doubling of the slot's transaction count: an idle relay writes nothing, so
//! that reporting never feeds itself with WAL of its own.

use crate::inspect::{Inspection, Record};
use crate::subject::literal;

/// The slot is new, or accepted as it is: $1 slot, $2 publication. Nothing where either is missing.
pub(crate) const WRITE: &str = "
insert into postrider.relay as r
  (slot, publication, publication_oid, system_identifier, timeline, slot_lsn, watermark, stats_epoch)
select s.slot_name, p.pubname, p.oid::bigint, (select system_identifier::text from pg_control_system()),
  ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
  s.confirmed_flush_lsn, s.confirmed_flush_lsn, (select stats_reset from pg_stat_archiver)
from pg_replication_slots s, pg_publication p
where s.slot_name = $1::text and p.pubname = $2::text
on conflict (slot) do update set
  publication = excluded.publication, publication_oid = excluded.publication_oid,
  system_identifier = excluded.system_identifier, timeline = excluded.timeline,
  slot_lsn = excluded.slot_lsn, created_at = now(), watermark = excluded.watermark, drained_at = null,
  decoded_txns = 0, stats_epoch = excluded.stats_epoch";

/// A relay holds the slot from here on: its position is no longer known. $1 slot.
pub(crate) const OPENED: &str = "
update postrider.relay set watermark = null,
  timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer
where slot = $1::text and (watermark is not null
  or timeline <> ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer)";

/// The relay has left the slot: where it stands is exact, if nobody has taken it. The lock comes first,
/// so that a relay that takes over at this moment marks the row after us. Runs as one transaction.
pub(crate) fn drained(slot: &str) -> String {
    let slot = literal(slot);
    format!(
        "select from postrider.relay where slot = {slot} for update;
         update postrider.relay r set watermark = s.confirmed_flush_lsn, drained_at = now()
         from pg_replication_slots s
         where r.slot = {slot} and s.slot_name = r.slot and s.active_pid is null"
    )
}

/// The slot has decoded this many transactions, for certain; at the next look if the quarantine is at work,
/// which holds the row. $1 slot.
pub(crate) const COUNTED: &str = "
update postrider.relay r set decoded_txns = t.total_txns,
  stats_epoch = (select stats_reset from pg_stat_archiver)
from pg_stat_replication_slots t
where t.slot_name = r.slot
  and r.slot in (select slot from postrider.relay where slot = $1::text for update skip locked)";

/// An operator has moved the slot. $1 slot.
pub(crate) const ADVANCED: &str = "
update postrider.relay r set watermark = s.confirmed_flush_lsn
from pg_replication_slots s
where r.slot = $1::text and s.slot_name = r.slot and s.active_pid is null and r.watermark is not null";

/// Whether [`COUNTED`] is worth a write: the count has doubled, or the old one says nothing any more.
pub(crate) fn worth_counting(seen: &Inspection, record: &Record) -> bool {
    let Some(slot) = &seen.slot else { return false };
    let known = if record.stats_epoch == seen.stats_epoch { record.decoded_txns } else { 0 };
    slot.decoded_txns.is_some_and(|now| now > known.saturating_mul(2))
}
