//! Whether a relay may read the slot: every stop of the contract, decided from one [`Inspection`].
//!
//! Pure: no IO, no clock. The order is that of creation (schema, tables, publication, slot), so
//! that the first stop's cure is the first thing to mend.

use crate::error::{Reason, Stop};
use crate::failure::forget_record;
use crate::inspect::{Inspection, Record, SlotFacts, TableFacts};
use crate::schema;
use crate::subject::{Subject, TableName, quoted};

const INIT: &str = "postrider init";
const SLOT_CREATE: &str = "postrider slot create";
const SLOT_DROP: &str = "postrider slot drop --yes";

impl Inspection {
    /// Whether a relay may read the slot. An `Err` is a state that waiting does not mend.
    pub fn verdict(&self, subject: &Subject) -> Result<(), Stop> {
        self.server_decodes()?;
        if !self.schema {
            return Err(stop(
                Reason::NoSchema,
                "the table postrider.relay does not exist",
                "the schema postrider is not complete; init creates what is missing",
                &[INIT],
            ));
        }
        self.tables_are_there(subject)?;
        self.publication_covers(subject)?;
        let slot = self.slot_decodes(subject)?;
        self.slot_is_the_recorded_one(subject, slot)
    }

    fn server_decodes(&self) -> Result<(), Stop> {
        if self.wal_level == "logical" {
            return Ok(());
        }
        let mut cure = vec!["alter system set wal_level = 'logical'"];
        if self.slot.is_none() {
            cure.push(INIT);
        }
        Err(stop(
            Reason::WalLevel,
            &format!("wal_level is {}", self.wal_level),
            "a slot needs wal_level = logical; the setting takes effect when the server is restarted, \
             so restart it after the first statement",
            &cure,
        ))
    }

    pub(crate) fn tables_are_there(&self, subject: &Subject) -> Result<(), Stop> {
        let mut tables = subject.tables().iter().zip(&self.tables);
        tables.try_for_each(|(name, table)| self.table_is_there(subject, name, table))
    }

    fn table_is_there(&self, subject: &Subject, name: &TableName, table: &TableFacts) -> Result<(), Stop> {
        if !table.exists {
            let ours = *name == TableName::default_outbox();
            let mut cure = vec![if ours { INIT.to_owned() } else { schema::create_outbox(name) }];
            if self.publication.is_some() && !table.covered {
                cure.push(add_table(subject, name));
            }
            let why = "there is nothing to read events from; a table that is created again is not in the \
                       publication, and the events of the dropped one that were not read yet are lost";
            return Err(stop_with(Reason::NoTable, format!("the table {name} does not exist"), why, cure));
        }
        if !table.logged && !table.partitioned {
            return Err(stop_with(
                Reason::TableNotLogged,
                format!("the table {name} is unlogged or temporary"),
                "its rows are not in the WAL, so that no slot sees them; those that are in it now are not sent",
                vec![format!("alter table {name} set logged")],
            ));
        }
        Ok(())
    }

    fn publication_covers(&self, subject: &Subject) -> Result<(), Stop> {
        let name = quoted(subject.publication());
        let Some(publication) = &self.publication else {
            // A slot older than its publication cannot read what lies before it.
            let cure: &[&str] = if self.slot.is_some() { &[SLOT_DROP, INIT] } else { &[INIT] };
            return Err(stop_with(
                Reason::NoPublication,
                format!("the publication {name} does not exist"),
                &format!(
                    "it says which tables the slot reads, and it must be older than the slot; {}",
                    self.loss()
                ),
                cure.iter().map(|&line| line.to_owned()).collect(),
            ));
        };
        if let Some(record) = &self.record
            && self.slot.is_some()
            && record.publication_oid != publication.oid
        {
            return Err(stop_with(
                Reason::PublicationReplaced,
                format!("the publication {name} was dropped and created again after the slot was created"),
                &format!(
                    "what was written while there was none cannot be read by this slot (PostgreSQL 17 and \
                     older fail for ever, 18 passes it over); {}",
                    self.loss()
                ),
                vec![SLOT_DROP.to_owned(), SLOT_CREATE.to_owned()],
            ));
        }
        if !publication.insert {
            return Err(stop_with(
                Reason::PublicationWithoutInsert,
                format!("the publication {name} does not publish inserts"),
                "only an insert is an event; those made while it does not publish them are not sent, \
                 also not after mending",
                vec![format!("alter publication {name} set (publish = 'insert')")],
            ));
        }
        for (table, facts) in subject.tables().iter().zip(&self.tables) {
            if !facts.covered {
                return Err(stop_with(
                    Reason::PublicationWithoutTable,
                    format!("the publication {name} does not cover the table {table}"),
                    "rows inserted while it does not are not sent, also not after mending; insert them again",
                    vec![add_table(subject, table)],
                ));
            }
            if facts.narrowed {
                return Err(stop_with(
                    Reason::PublicationNarrowed,
                    format!("the publication {name} has a row filter or a column list on the table {table}"),
                    "rows or columns that it hides are not sent, also not after mending",
                    vec![format!("alter publication {name} drop table {table}"), add_table(subject, table)],
                ));
            }
            if facts.partitioned && !publication.via_root {
                return Err(stop_with(
                    Reason::PublicationByPartition,
                    format!("the publication {name} publishes {table} under the names of its partitions"),
                    "the relay knows the table by its own name only; rows inserted until this is mended \
                     are not sent",
                    vec![format!("alter publication {name} set (publish_via_partition_root = true)")],
                ));
            }
        }
        Ok(())
    }

    fn slot_decodes(&self, subject: &Subject) -> Result<&SlotFacts, Stop> {
        let name = subject.slot();
        let Some(slot) = &self.slot else {
            let why = if self.record.is_some() {
                "it was dropped, or the server was replaced by one that does not have it; a relay never creates \
                 a slot, because that would hide a gap: what was committed since, and before a new slot, is not \
                 sent unless it is inserted again"
            } else {
                "nothing holds events for the relay yet; events count from the creation of the slot"
            };
            return Err(stop(
                Reason::NoSlot,
                &format!("the slot {name} does not exist"),
                why,
                &[SLOT_CREATE],
            ));
        };
        let invalid = slot.wal_status.as_deref() == Some("lost") || slot.conflicting == Some(true);
        if invalid || slot.invalidation_reason.is_some() {
            let reason = slot.invalidation_reason.as_deref().unwrap_or("max_slot_wal_keep_size");
            return Err(stop_with(
                Reason::SlotLost,
                format!("the slot {name} is lost ({reason})"),
                &format!("the server has removed the WAL that the slot still needed; {}", self.loss()),
                vec![SLOT_DROP.to_owned(), SLOT_CREATE.to_owned()],
            ));
        }
        let wrong = match (slot.plugin.as_deref(), slot.database.as_deref()) {
            (None, _) | (_, None) => Some("a physical slot".to_owned()),
            (Some("pgoutput"), _) if slot.temporary => Some("a temporary slot".to_owned()),
            (Some("pgoutput"), Some(database)) if database == self.database => None,
            (Some("pgoutput"), Some(database)) => Some(format!("a slot of the database {database}")),
            (Some(plugin), _) => Some(format!("a slot of the plugin {plugin}")),
        };
        match wrong {
            None => Ok(slot),
            Some(kind) => Err(stop_with(
                Reason::SlotKind,
                format!("the slot {name} is {kind}"),
                &format!(
                    "the relay reads a permanent slot of the plugin pgoutput in the database {}; set \
                     postgres.slot to another name if this one belongs to something else, else drop it",
                    self.database
                ),
                vec![SLOT_DROP.to_owned(), SLOT_CREATE.to_owned()],
            )),
        }
    }

    fn slot_is_the_recorded_one(&self, subject: &Subject, slot: &SlotFacts) -> Result<(), Stop> {
        let name = subject.slot();
        let Some(record) = &self.record else {
            return Err(self.unrecorded(subject, slot));
        };
        let forget = || vec![forget_record(name), INIT.to_owned()];
        if record.system_identifier != self.system_identifier {
            return Err(stop_with(
                Reason::SlotElsewhere,
                format!("the slot {name} was recorded on another cluster ({})", record.system_identifier),
                &format!(
                    "this one is {}: the database was copied, restored or upgraded, and what lies between the \
                     two is in neither slot; the cure accepts that and records the slot as it is",
                    self.system_identifier
                ),
                forget(),
            ));
        }
        let moved_on = self.timeline.is_some_and(|timeline| timeline != record.timeline);
        if moved_on && slot.synced != Some(true) {
            return Err(stop_with(
                Reason::SlotElsewhere,
                format!("the slot {name} was recorded on timeline {}", record.timeline),
                &format!(
                    "the server writes timeline {} since a standby was promoted or a backup restored, and the \
                     slot did not come along as a failover slot: events may lie between; the cure accepts that \
                     and records the slot as it is",
                    self.timeline.unwrap_or_default()
                ),
                forget(),
            ));
        }
        if let Some(evidence) = self.replaced(record, slot) {
            return Err(stop_with(
                Reason::SlotReplaced,
                format!("the slot {name} is not the one that was recorded"),
                &format!(
                    "{evidence}, so it was moved, or dropped and created again, behind the relay's back, and \
                     events committed in between were passed over; the cure accepts that gap and records the \
                     slot as it is"
                ),
                forget(),
            ));
        }
        Ok(())
    }

    fn unrecorded(&self, subject: &Subject, slot: &SlotFacts) -> Stop {
        let name = subject.slot();
        if self.publication_is_older_than(slot) {
            return stop(
                Reason::SlotUnrecorded,
                &format!("the slot {name} is not recorded in postrider.relay"),
                "it was created by hand, and nobody knows what it missed; the cure records it as it is: \
                 events count from where it stands",
                &[INIT],
            );
        }
        stop_with(
            Reason::PublicationYounger,
            format!("the publication {} may be younger than the slot {name}", quoted(subject.publication())),
            &format!(
                "the slot is not recorded in postrider.relay, and it still reads WAL from before the \
                 publication was last written, where it fails (PostgreSQL 17 and older) or passes events over \
                 (18); {}",
                self.loss()
            ),
            vec![SLOT_DROP.to_owned(), SLOT_CREATE.to_owned()],
        )
    }

    /// Proof that all the slot will read was written with the publication in place: the catalog
    /// that it reads by is younger than the publication's row.
    pub(crate) fn publication_is_older_than(&self, slot: &SlotFacts) -> bool {
        match (&self.publication, slot.catalog_xmin_age) {
            (Some(publication), Some(age)) => publication.xmin_age > age,
            _ => false,
        }
    }

    /// Evidence that another slot of the same name stands where ours stood, or that somebody moved it.
    ///
    /// Two independent marks, as Postgres gives a slot no identity of its own:
    ///
    /// - after a drain we know where it stood. It can fall back (a crash of the server), but only a
    ///   consumer that is not the relay, or a new slot, stands further on. This is exact.
    /// - while a relay runs, and after it was killed, its position is not known (writing it down would
    ///   write WAL, which would move the position). But the count of decoded transactions only grows,
    ///   and a new slot's starts from 0. A crash of the server or `pg_stat_reset…` resets it as well;
    ///   both leave a time behind, and then the count says nothing.
    ///
    /// What stays unseen: the relay was killed, the server then crashed, and then the slot was replaced.
    fn replaced(&self, record: &Record, slot: &SlotFacts) -> Option<String> {
        if let (Some(left), Some(stands)) = (record.watermark, slot.confirmed_flush_lsn)
            && stands > left
        {
            return Some(format!("it stands at {stands}, but the last relay left it at {left}"));
        }
        let counted = record.decoded_txns;
        match slot.decoded_txns {
            Some(now)
                if now < counted && record.stats_epoch == self.stats_epoch && slot.stats_reset.is_none() =>
            {
                Some(format!("it has decoded {now} transactions, but the recorded one had decoded {counted}"))
            }
            _ => None,
        }
    }

    /// What is lost with the slot, in words.
    fn loss(&self) -> String {
        match self.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn) {
            None => "no event is lost that was not lost before".to_owned(),
            Some(confirmed) => format!(
                "a new slot begins at the end of the WAL, so events committed after {confirmed} that were not \
                 sent are lost to the relay: insert those rows again that must be sent"
            ),
        }
    }
}

fn add_table(subject: &Subject, table: &TableName) -> String {
    format!("alter publication {} add table {table}", quoted(subject.publication()))
}

fn stop(reason: Reason, what: &str, why: &str, cure: &[&str]) -> Stop {
    stop_with(reason, what.to_owned(), why, cure.iter().map(|&line| line.to_owned()).collect())
}

fn stop_with(reason: Reason, what: String, why: &str, cure: Vec<String>) -> Stop {
    Stop { reason, what, why: why.to_owned(), cure }
}
