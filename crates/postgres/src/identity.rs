//! Whether the slot is the one that was recorded: Postgres gives a slot no identity, so that one that was
//! dropped and created again looks like ours, and the gap between the two like silence.

use crate::error::{Reason, Stop};
use crate::inspect::{Inspection, Record, SlotFacts};
use crate::subject::{Subject, literal, quoted};
use crate::verdict::{INIT, SLOT_CREATE, SLOT_DROP, stop, stop_with};

impl Inspection {
    pub(crate) fn slot_is_the_recorded_one(&self, subject: &Subject, slot: &SlotFacts) -> Result<(), Stop> {
        let name = subject.slot();
        let Some(record) = &self.record else {
            return Err(self.unrecorded(subject, slot));
        };
        // The publication is the recorded one, so that any slot made after the record can read by it.
        let accept = |identity: &str| {
            let whose = literal(name);
            vec![format!(
                "update postrider.relay set {identity}watermark = null, decoded_txns = 0 where slot = {whose}"
            )]
        };
        if record.system_identifier != self.system_identifier {
            return Err(stop_with(
                Reason::SlotElsewhere,
                format!("the slot {name} was recorded on another cluster ({})", record.system_identifier),
                &format!(
                    "this one is {}: the database was copied, restored or upgraded, and what lies between the \
                     two is in neither slot; the cure accepts that and records the slot as it is",
                    self.system_identifier
                ),
                accept(&format!(
                    "system_identifier = {}, timeline = {}, ",
                    literal(&self.system_identifier),
                    self.timeline.unwrap_or(record.timeline)
                )),
            ));
        }
        let promoted = self.timeline.filter(|&timeline| timeline != record.timeline);
        if let Some(timeline) = promoted.filter(|_| slot.synced != Some(true)) {
            return Err(stop_with(
                Reason::SlotElsewhere,
                format!("the slot {name} was recorded on timeline {}", record.timeline),
                &format!(
                    "the server writes timeline {timeline} since a standby was promoted or a backup restored, and the \
                     slot did not come along as a failover slot: events may lie between; the cure accepts that \
                     and records the slot as it is"
                ),
                accept(&format!("timeline = {timeline}, ")),
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
                accept(""),
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
    fn publication_is_older_than(&self, slot: &SlotFacts) -> bool {
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
    /// What stays unseen: the relay was killed, the server then crashed, and then the slot was replaced. And
    /// PostgreSQL 14 counts half a second late.
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
}
