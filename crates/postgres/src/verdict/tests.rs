//! The table of stops: one fact changed, one rule broken.

use postrider_relay::Lsn;

use crate::error::Reason;
use crate::inspect::{Inspection, PublicationFacts, QuarantineFacts, Record, SlotFacts, TableFacts};
use crate::subject::{Subject, TableName};

fn subject() -> Subject {
    Subject::new("postrider", "postrider", vec![TableName::default_outbox()]).expect("good names")
}

/// A relay drained at 0/100, and nothing has changed since.
fn sound() -> Inspection {
    Inspection {
        database: "shop".to_owned(),
        in_recovery: false,
        wal_level: "logical".to_owned(),
        wal_lsn: Lsn(0x200),
        wal_sender_timeout: None,
        system_identifier: "7".to_owned(),
        timeline: Some(1),
        stats_epoch: Some("today".to_owned()),
        slot: Some(SlotFacts {
            plugin: Some("pgoutput".to_owned()),
            database: Some("shop".to_owned()),
            temporary: false,
            active_pid: None,
            restart_lsn: Some(Lsn(0x80)),
            confirmed_flush_lsn: Some(Lsn(0x100)),
            wal_status: Some("reserved".to_owned()),
            safe_wal_size: None,
            conflicting: None,
            invalidation_reason: None,
            failover: None,
            synced: None,
            catalog_xmin_age: Some(10),
            decoded_txns: Some(5),
            stats_reset: None,
            sent_lsn: None,
        }),
        publication: Some(PublicationFacts { oid: 42, xmin_age: 10, insert: true, via_root: true }),
        tables: vec![TableFacts {
            exists: true,
            partitioned: false,
            logged: true,
            covered: true,
            narrowed: false,
        }],
        record: Some(Record {
            publication_oid: 42,
            system_identifier: "7".to_owned(),
            timeline: 1,
            slot_lsn: Lsn(0x10),
            watermark: Some(Lsn(0x100)),
            decoded_txns: 5,
            stats_epoch: Some("today".to_owned()),
        }),
        schema: true,
        quarantine: Some(QuarantineFacts { granted: true }),
        role: "Relay".to_owned(),
    }
}

fn slot(seen: &mut Inspection) -> &mut SlotFacts {
    seen.slot.as_mut().expect("a slot")
}

fn publication(seen: &mut Inspection) -> &mut PublicationFacts {
    seen.publication.as_mut().expect("a publication")
}

fn record(seen: &mut Inspection) -> &mut Record {
    seen.record.as_mut().expect("a record")
}

fn verdict(change: impl FnOnce(&mut Inspection)) -> Option<(Reason, Vec<String>)> {
    let mut seen = sound();
    change(&mut seen);
    seen.verdict(&subject()).err().map(|stop| (stop.reason, stop.cure))
}

#[track_caller]
fn stops(reason: Reason, cure: &[&str], change: impl FnOnce(&mut Inspection)) {
    let (found, steps) = verdict(change).expect("a stop");
    assert_eq!(found, reason);
    assert_eq!(steps, cure);
}

const RECREATE: &[&str] = &["postrider slot drop --yes", "postrider slot create"];
const ACCEPT: &str = "update postrider.relay set watermark = null, decoded_txns = 0 where slot = 'postrider'";

#[test]
fn what_is_sound_does_not_stop() {
    assert_eq!(verdict(|_| {}), None);
    // A crash of the server: the slot fell back, the statistics began anew.
    assert_eq!(
        verdict(|seen| {
            slot(seen).confirmed_flush_lsn = Some(Lsn(0x90));
            slot(seen).decoded_txns = Some(0);
            seen.stats_epoch = Some("later".to_owned());
        }),
        None
    );
    // The slot's statistics were reset by hand.
    assert_eq!(
        verdict(|seen| {
            slot(seen).decoded_txns = Some(0);
            slot(seen).stats_reset = Some("now".to_owned());
        }),
        None
    );
    // A relay was killed: where it stood is not known.
    assert_eq!(
        verdict(|seen| {
            record(seen).watermark = None;
            slot(seen).confirmed_flush_lsn = Some(Lsn(0x180));
        }),
        None
    );
    // A failover to a standby that had the slot.
    assert_eq!(
        verdict(|seen| {
            seen.timeline = Some(2);
            slot(seen).synced = Some(true);
        }),
        None
    );
    // Partitions under the name of their root have no logged rows of their own.
    assert_eq!(
        verdict(|seen| {
            seen.tables[0].partitioned = true;
            seen.tables[0].logged = false;
        }),
        None
    );
}

#[test]
fn server_and_tables() {
    stops(Reason::WalLevel, &["alter system set wal_level = 'logical'"], |seen| {
        seen.wal_level = "replica".to_owned();
    });
    stops(Reason::WalLevel, &["alter system set wal_level = 'logical'", "postrider init"], |seen| {
        seen.wal_level = "replica".to_owned();
        seen.slot = None;
    });
    stops(Reason::NoSchema, &["postrider init"], |seen| seen.schema = false);
    stops(Reason::NoSchema, &["postrider init"], |seen| seen.quarantine = None);
    stops(Reason::TableNotLogged, &["alter table postrider.outbox set logged"], |seen| {
        seen.tables[0].logged = false;
    });
    let (reason, cure) = verdict(|seen| {
        seen.tables[0] =
            TableFacts { exists: false, partitioned: false, logged: false, covered: false, narrowed: false };
    })
    .expect("a stop");
    assert_eq!(reason, Reason::NoTable);
    assert!(cure[0].starts_with("create table postrider.outbox ( id uuid"), "{cure:?}");
    assert_eq!(cure[1], "alter publication postrider add table postrider.outbox");
}

#[test]
fn rights() {
    let mut seen = sound();
    assert!(seen.rights().is_ok());
    seen.quarantine = Some(QuarantineFacts { granted: false });
    // Who only looks is not stopped by it.
    assert!(seen.verdict(&subject()).is_ok());
    let stop = seen.rights().expect_err("a stop");
    assert_eq!(stop.reason, Reason::Rights);
    let grant = "grant select, insert, update on postrider.quarantine to \"Relay\"";
    assert!(stop.cure.iter().any(|line| line == grant), "{stop}");
}

#[test]
fn publications() {
    let add = "alter publication postrider add table postrider.outbox";
    stops(Reason::NoPublication, &["postrider slot drop --yes", "postrider init"], |seen| {
        seen.publication = None;
    });
    stops(Reason::NoPublication, &["postrider init"], |seen| {
        seen.publication = None;
        seen.slot = None;
    });
    stops(Reason::PublicationReplaced, RECREATE, |seen| publication(seen).oid = 43);
    // Without a slot there is nothing that could be older.
    stops(Reason::NoSlot, &["postrider slot create"], |seen| {
        publication(seen).oid = 43;
        seen.slot = None;
    });
    stops(
        Reason::PublicationWithoutInsert,
        &["alter publication postrider set (publish = 'insert')"],
        |seen| publication(seen).insert = false,
    );
    stops(Reason::PublicationWithoutTable, &[add], |seen| seen.tables[0].covered = false);
    stops(
        Reason::PublicationNarrowed,
        &["alter publication postrider drop table postrider.outbox", add],
        |seen| seen.tables[0].narrowed = true,
    );
    stops(
        Reason::PublicationByPartition,
        &["alter publication postrider set (publish_via_partition_root = true)"],
        |seen| {
            seen.tables[0].partitioned = true;
            publication(seen).via_root = false;
        },
    );
}

#[test]
fn slots() {
    stops(Reason::NoSlot, &["postrider slot create"], |seen| seen.slot = None);
    stops(Reason::SlotLost, RECREATE, |seen| slot(seen).wal_status = Some("lost".to_owned()));
    stops(Reason::SlotLost, RECREATE, |seen| slot(seen).conflicting = Some(true));
    stops(Reason::SlotLost, RECREATE, |seen| {
        slot(seen).invalidation_reason = Some("idle_timeout".to_owned());
    });
    stops(Reason::SlotKind, RECREATE, |seen| slot(seen).plugin = None);
    stops(Reason::SlotKind, RECREATE, |seen| slot(seen).plugin = Some("wal2json".to_owned()));
    stops(Reason::SlotKind, RECREATE, |seen| slot(seen).database = Some("other".to_owned()));
    stops(Reason::SlotKind, RECREATE, |seen| slot(seen).temporary = true);
}

#[test]
fn identities() {
    stops(Reason::SlotReplaced, &[ACCEPT], |seen| slot(seen).confirmed_flush_lsn = Some(Lsn(0x101)));
    stops(Reason::SlotReplaced, &[ACCEPT], |seen| {
        record(seen).watermark = None;
        slot(seen).decoded_txns = Some(4);
    });
    stops(
        Reason::SlotElsewhere,
        &["update postrider.relay set system_identifier = '8', timeline = 1, watermark = null, \
           decoded_txns = 0 where slot = 'postrider'"],
        |seen| seen.system_identifier = "8".to_owned(),
    );
    stops(
        Reason::SlotElsewhere,
        &["update postrider.relay set timeline = 2, watermark = null, decoded_txns = 0 \
           where slot = 'postrider'"],
        |seen| seen.timeline = Some(2),
    );
    // The publication is older than all the slot still reads by, or nobody knows.
    stops(Reason::SlotUnrecorded, &["postrider init"], |seen| {
        seen.record = None;
        publication(seen).xmin_age = 11;
    });
    stops(Reason::PublicationYounger, RECREATE, |seen| seen.record = None);
}
