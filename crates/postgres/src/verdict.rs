//! Whether a relay may read the slot: every stop of the contract, decided from one [`Inspection`].
//!
//! Pure: no IO, no clock. The order is that of creation (schema, tables, publication, slot), so
//! that the first stop's cure is the first thing to mend.

use crate::error::{Reason, Stop};
use crate::failure;
use crate::inspect::{Inspection, SlotFacts, TableFacts};
use crate::schema;
use crate::subject::{Subject, TableName, quoted};

pub(crate) const INIT: &str = "postrider init";
pub(crate) const SLOT_CREATE: &str = "postrider slot create";
pub(crate) const SLOT_DROP: &str = "postrider slot drop --yes";

impl Inspection {
    /// Whether a relay may read the slot. An `Err` is a state that waiting does not mend.
    pub fn verdict(&self, subject: &Subject) -> Result<(), Stop> {
        self.server_decodes()?;
        for (table, is_there) in [("relay", self.schema), ("quarantine", self.quarantine.is_some())] {
            if !is_there {
                return Err(stop(
                    Reason::NoSchema,
                    &format!("the table postrider.{table} does not exist"),
                    "the schema postrider is not complete; init creates what is missing",
                    &[INIT],
                ));
            }
        }
        self.tables_are_there(subject)?;
        self.publication_covers(subject)?;
        let slot = self.slot_decodes(subject)?;
        self.slot_is_the_recorded_one(subject, slot)
    }

    /// Whether who asks may do what a relay does; an operator, who only looks, need not.
    pub fn rights(&self) -> Result<(), Stop> {
        if self.quarantine.as_ref().is_none_or(|quarantine| quarantine.granted) {
            return Ok(());
        }
        let role = quoted(&self.role);
        Err(stop_with(
            Reason::Rights,
            format!("role {role} lacks a right on postrider.quarantine"),
            "what cannot be delivered is kept there, and nothing is passed over that is not kept",
            failure::relay_grants(&role),
        ))
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
            let mut cure = vec![schema::create_outbox(name)];
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
                 also not after mending; insert them again",
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
                    "rows or columns that it hides are not sent, also not after mending; insert those rows again",
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

    /// What is lost with the slot, in words.
    pub(crate) fn loss(&self) -> String {
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

pub(crate) fn stop(reason: Reason, what: &str, why: &str, cure: &[&str]) -> Stop {
    stop_with(reason, what.to_owned(), why, cure.iter().map(|&line| line.to_owned()).collect())
}

pub(crate) fn stop_with(reason: Reason, what: String, why: &str, cure: Vec<String>) -> Stop {
    Stop { reason, what, why: why.to_owned(), cure }
}

#[cfg(test)]
mod tests;
