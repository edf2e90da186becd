//! Each kind of violation, made on purpose, is found, and named as what it is.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use super::*;
use crate::consumer::{Properties, Value};

/// Two transactions of order 7, each with two events, and one of order 8.
fn truth() -> Truth {
    let mut truth = Truth::default();
    for (id, order, seq, xid, index) in [
        ("a1", "7", 1, 70, 0),
        ("a2", "7", 2, 70, 1),
        ("a3", "7", 3, 71, 0),
        ("a4", "7", 4, 71, 1),
        ("b1", "8", 1, 72, 0),
    ] {
        let lsn = |offset: u64| PgLsn::from(u64::from(xid) * 100 - 50 + offset);
        let next_lsn = (id == "a2").then_some(lsn(100));
        let place = Place { xid, index, written_lsn: lsn(0), next_lsn };
        truth
            .add(Event {
                id: id.to_owned(),
                aggregate_type: "order".to_owned(),
                aggregate_id: order.to_owned(),
                aggregate_seq: seq,
                payload: Some(format!("{{\"id\":\"{id}\"}}").into_bytes()),
                place: Some(place),
            })
            .unwrap();
    }
    truth
}

/// The event as a flawless relay delivers it: transaction 70 commits at 7000, which is 0/1B58.
fn delivery(id: &str) -> Delivery {
    let truth = truth();
    let event = truth.event(id).cloned().unwrap_or_else(|| Event {
        id: id.to_owned(),
        aggregate_type: "order".to_owned(),
        aggregate_id: "9".to_owned(),
        aggregate_seq: 1,
        payload: None,
        place: None,
    });
    let place =
        event.place.unwrap_or(Place { xid: 90, index: 0, written_lsn: PgLsn::from(0), next_lsn: None });
    let commit_lsn = PgLsn::from(u64::from(place.xid) * 100);
    let headers = BTreeMap::from([
        ("aggregate_type".to_owned(), Value::Text(event.aggregate_type)),
        ("aggregate_id".to_owned(), Value::Text(event.aggregate_id)),
        ("aggregate_seq".to_owned(), Value::Long(event.aggregate_seq)),
        ("postrider_position".to_owned(), Value::Text(format!("{commit_lsn}/{}", place.index))),
    ]);
    Delivery {
        exchange: "postrider".to_owned(),
        routing_key: "order.placed".to_owned(),
        redelivered: false,
        session: 0,
        arrived: Instant::now(),
        arrived_at: SystemTime::now(),
        properties: Properties { message_id: Some(event.id), ..Properties::default() },
        headers,
        body: event.payload.unwrap_or_default(),
    }
}

fn deliveries(ids: &[&str]) -> Vec<Delivery> {
    ids.iter().map(|id| delivery(id)).collect()
}

fn position(delivery: &mut Delivery, position: &str) {
    delivery.headers.insert("postrider_position".to_owned(), Value::Text(position.to_owned()));
}

fn mark(xid: u64) -> Delivery {
    let lsn = PgLsn::from(xid * 100).to_string();
    let headers = BTreeMap::from([("testenv_persisted".to_owned(), Value::Text(lsn))]);
    Delivery { properties: Properties::default(), headers, body: Vec::new(), ..delivery("a1") }
}

/// The message ids of the offenders, each kind after its letter.
fn offences(verdict: &Verdict) -> String {
    let kinds = [
        ("L", &verdict.lost),
        ("G", &verdict.ghosts),
        ("O", &verdict.out_of_order),
        ("D", &verdict.forbidden),
        ("A", &verdict.altered),
    ];
    let named = kinds.iter().flat_map(|(kind, offenders)| {
        offenders.iter().map(move |offender| format!("{kind}:{}", offender.message_id))
    });
    named.collect::<Vec<_>>().join(" ")
}

fn check(deliveries: &[Delivery], faults: &[Fault], expected: &str) {
    let verdict = judge(&truth(), deliveries, faults);
    assert_eq!(offences(&verdict), expected, "{verdict}");
    assert_eq!(verdict.is_clean(), expected.is_empty());
}

const ALL: [&str; 5] = ["a1", "a2", "a3", "a4", "b1"];

#[test]
fn what_arrives_once_and_in_order_is_clean() {
    check(&deliveries(&ALL), &[], "");
    check(&deliveries(&["b1", "a1", "a2", "a3", "a4"]), &[], "");
    let verdict = judge(&truth(), &deliveries(&ALL), &[]);
    verdict.expect_clean().unwrap();
    assert_eq!((verdict.committed, verdict.delivered, verdict.deliveries, verdict.duplicates), (5, 5, 5, 0));
}

#[test]
fn nothing_written_is_no_success() {
    assert!(judge(&Truth::default(), &[], &[]).expect_clean().is_err());
}

#[test]
fn a_loss_is_found() {
    check(&deliveries(&["a1", "a2", "a3", "b1"]), &[], "L:a4");
    check(&[], &[], "L:a1 L:a2 L:a3 L:a4 L:b1");
}

#[test]
fn a_ghost_is_found() {
    check(&deliveries(&["a1", "rolled-back", "a2", "a3", "a4", "b1"]), &[], "G:rolled-back");
    let mut nameless = delivery("a1");
    nameless.properties.message_id = None;
    check(&[deliveries(&ALL), vec![nameless]].concat(), &[], "G:");
}

#[test]
fn an_event_behind_its_younger_is_found() {
    check(&deliveries(&["a1", "a3", "a2", "a4", "b1"]), &[], "O:a2");
    check(&deliveries(&["a4", "a1", "a2", "a3", "b1"]), &[], "O:a1 O:a2 O:a3");
}

#[test]
fn a_copy_before_any_fault_is_found() {
    check(&deliveries(&["a1", "a1", "a2", "a3", "a4", "b1"]), &[], "D:a1");
}

#[test]
fn a_copy_of_what_the_slot_has_passed_is_found() {
    let again = |marked: u64, copies: &[&str]| {
        [deliveries(&["a1", "a2", "a3"]), vec![mark(marked)], deliveries(copies), deliveries(&["a4", "b1"])]
            .concat()
    };
    // The slot stood at transaction 71: 70 is paid, 71 is owed.
    check(&again(71, &["a3"]), &[], "");
    check(&again(71, &["a2", "a3"]), &[], "D:a2");
    check(&again(72, &["a2", "a3"]), &[], "D:a2 D:a3");
    check(&again(70, &["a1", "a2", "a3"]), &[], "");
    assert_eq!(judge(&truth(), &again(70, &["a1", "a2", "a3"]), &[]).duplicates, 3);
}

#[test]
fn the_last_fault_counts_and_needs_no_mark() {
    let arrived = deliveries(&["a1", "a2", "a1", "a2", "a3", "a4", "a2", "a3", "b1"]);
    let fault = |arrived, xid: u64| Fault { arrived, persisted: PgLsn::from(xid * 100) };
    check(&arrived, &[fault(2, 70), fault(6, 71)], "D:a2");
    check(&arrived, &[fault(2, 70)], "");
    check(&arrived, &[fault(3, 70)], "D:a1");
}

#[test]
fn a_copy_does_not_excuse_the_order_of_first_deliveries() {
    let arrived = [vec![delivery("a1"), mark(70)], deliveries(&["a1", "a3", "a2", "a4", "b1"])].concat();
    check(&arrived, &[], "O:a2");
}

#[test]
fn what_the_broker_hands_out_again_is_nobodys_fault() {
    let again = |session, redelivered| Delivery { redelivered, session, ..delivery("a2") };
    let arrived = |copy| [deliveries(&["a1", "a2"]), vec![copy], deliveries(&["a3", "a4", "b1"])].concat();
    check(&arrived(again(1, true)), &[], "");
    assert_eq!(judge(&truth(), &arrived(again(1, true)), &[]).redelivered, 1);
    // The flag alone, or a new connection alone, excuses nothing.
    check(&arrived(again(0, true)), &[], "D:a2");
    check(&arrived(again(1, false)), &[], "D:a2");
}

#[test]
fn an_altered_delivery_is_found() {
    let alter = |change: fn(&mut Delivery)| {
        let mut arrived = deliveries(&ALL);
        change(&mut arrived[1]);
        check(&arrived, &[], "A:a2");
    };
    alter(|delivery| delivery.body.push(b' '));
    alter(|delivery| _ = delivery.headers.insert("payload_null".to_owned(), Value::Bool(true)));
    alter(|delivery| _ = delivery.headers.remove("aggregate_type"));
    alter(|delivery| _ = delivery.headers.insert("aggregate_id".to_owned(), Value::Long(7)));
    alter(|delivery| _ = delivery.headers.insert("aggregate_seq".to_owned(), Value::Int(2)));
    alter(|delivery| _ = delivery.headers.remove("postrider_position"));
    // Number 0 of its transaction; before it was inserted; behind the next; where its transaction is not; where
    // another is.
    alter(|delivery| position(delivery, "0/1B58/0"));
    alter(|delivery| position(delivery, "0/100/1"));
    alter(|delivery| position(delivery, "0/1B8A/1"));
    alter(|delivery| position(delivery, "0/1B59/1"));
    let mut arrived = deliveries(&ALL);
    position(&mut arrived[4], "0/1BBC/0");
    check(&arrived, &[], "A:b1");
}

#[test]
fn a_null_payload_is_an_empty_body_with_a_header() {
    let mut truth = truth();
    let event = Event {
        id: "null".to_owned(),
        aggregate_id: "9".to_owned(),
        payload: None,
        ..truth.event("b1").unwrap().clone()
    };
    truth.add(Event { place: None, ..event }).unwrap();
    let mut null = delivery("null");
    let verdict = judge(&truth, &[deliveries(&ALL), vec![null.clone()]].concat(), &[]);
    assert_eq!(offences(&verdict), "A:null", "{verdict}");
    null.headers.insert("payload_null".to_owned(), Value::Bool(true));
    judge(&truth, &[deliveries(&ALL), vec![null]].concat(), &[]).expect_clean().unwrap();
}

#[test]
fn a_copy_that_differs_from_the_first_is_found() {
    let mut copy = delivery("a1");
    position(&mut copy, "0/2000/0");
    let arrived = [deliveries(&ALL), vec![mark(70), copy]].concat();
    let verdict = judge(&truth(), &arrived, &[]);
    let words: Vec<_> = verdict.altered.iter().map(|offender| offender.what.as_str()).collect();
    assert!(words.iter().any(|what| what.contains("a copy has another position")), "{verdict}");
}

#[test]
fn a_passed_and_undelivered_event_is_found() {
    let commits: Commits = [70, 71, 72]
        .into_iter()
        .map(|xid| {
            let lsn = |offset: u64| PgLsn::from(u64::from(xid) * 100 + offset);
            Commit { xid, commit_lsn: lsn(0), end_lsn: lsn(40) }
        })
        .collect();
    let check = |confirmed: u64, delivered: &[&str], expected: &[&str]| {
        let slot = Slot {
            confirmed_flush_lsn: confirmed.into(),
            restart_lsn: None,
            active_pid: None,
            wal_status: None,
        };
        let found = slot.passed_undelivered(&truth(), &commits, &deliveries(delivered));
        let ids: Vec<_> = found.iter().map(|offender| offender.message_id.as_str()).collect();
        assert_eq!(ids, expected, "at {confirmed}");
    };
    check(7040, &["a1", "a2"], &[]);
    check(7040, &["a1"], &["a2"]);
    // At the commit record itself the transaction is sent again.
    check(7100, &["a1", "a2"], &[]);
    check(7140, &["a1", "a2"], &["a3", "a4"]);
    let slot =
        Slot { confirmed_flush_lsn: 7140.into(), restart_lsn: None, active_pid: None, wal_status: None };
    let truth =
        truth().with(&Quarantine::from_iter([kept("a3", State::Parked), kept("a4", State::Delivered)]));
    let found = slot.passed_undelivered(&truth, &commits, &deliveries(&["a1", "a2"]));
    assert_eq!(found.iter().map(|offender| offender.message_id.as_str()).collect::<Vec<_>>(), ["a4"]);
    assert_eq!(commits.before(7100.into()).unwrap().end_lsn, 7040.into());
}

/// The event's row in quarantine, in this state; later events of its aggregate wait behind it.
fn kept(id: &str, state: State) -> Kept {
    let position = delivery(id).position().unwrap();
    let reason = "unrouted".to_owned();
    Kept { position, message_id: Some(id.to_owned()), state, holds_back: true, reason, attempts: 12 }
}

fn check_kept(rows: &[Kept], delivered: &[Delivery], expected: &str, quarantined: usize) {
    let verdict = judge(&truth().with(&rows.iter().cloned().collect()), delivered, &[]);
    assert_eq!((offences(&verdict).as_str(), verdict.quarantined), (expected, quarantined), "{verdict}");
}

#[test]
fn what_stands_in_quarantine_is_not_lost() {
    let parked = [kept("a3", State::Parked), kept("a4", State::Released)];
    check_kept(&parked, &deliveries(&["a1", "a2", "b1"]), "", 2);
    check_kept(&parked[..1], &deliveries(&["a1", "a2", "b1"]), "L:a4", 1);
    // A row that says it was delivered is no delivery.
    check_kept(&[kept("a4", State::Delivered)], &deliveries(&["a1", "a2", "a3", "b1"]), "L:a4", 0);
    check_kept(&[kept("a4", State::Delivered)], &deliveries(&ALL), "", 0);
}

#[test]
fn what_overtakes_the_quarantine_is_found() {
    let rest = deliveries(&["a1", "a2", "a4", "b1"]);
    check_kept(&[kept("a3", State::Parked)], &rest, "O:a3", 1);
    check_kept(&[kept("a3", State::Discarded)], &rest, "", 1);
    check_kept(&[Kept { holds_back: false, ..kept("a3", State::Parked) }], &rest, "", 1);
    // And once it has arrived, as everywhere.
    check_kept(&[kept("a3", State::Delivered)], &deliveries(&["a1", "a2", "a4", "a3", "b1"]), "O:a3", 0);
}

#[test]
fn a_row_of_nothing_committed_is_a_ghost() {
    let row = Kept { message_id: Some("c1".to_owned()), ..kept("a1", State::Parked) };
    check_kept(&[row], &deliveries(&ALL), "G:c1", 0);
}

#[test]
fn behind_a_fault_what_was_in_quarantine_may_arrive_again() {
    let again = |mark: Vec<Delivery>| [deliveries(&ALL), mark, deliveries(&["a2"])].concat();
    let rows = [kept("a2", State::Delivered)];
    check_kept(&rows, &again(vec![mark(72)]), "", 0);
    check_kept(&[], &again(vec![mark(72)]), "D:a2", 0);
    check_kept(&rows, &again(vec![]), "D:a2", 0);
}

#[test]
fn the_verdict_names_the_first_few() {
    let text = judge(&truth(), &deliveries(&["a2"]), &[]).to_string();
    assert!(text.contains("lost                          4"), "{text}");
    assert!(text.contains("order/7 #1 (a1): committed, never delivered"), "{text}");
}
