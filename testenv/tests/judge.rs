//! The writer, the consumer and the oracle against real servers, with a throw-away publisher in the relay's place.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::{Consumer, Parcel, Properties, Queue, QueueKind, Value, drain, publish};
use testenv::oracle::{Commits, Event, Offender, Slot, Truth, Verdict, judge};
use testenv::postgres::Stop;
use testenv::writer::{Backlog, Load, Writer, create_shop, write};
use testenv::{Pair, PostgresOptions, RabbitMqOptions, Scope, Sql};

const LIMIT: Duration = Duration::from_secs(60);

/// The part of the contract's outbox that the writer fills.
const OUTBOX: &str = "
    create schema postrider;
    create table postrider.outbox (
        id uuid primary key default gen_random_uuid(),
        aggregate_type text not null, aggregate_id text not null, event_type text not null,
        payload json, headers jsonb, aggregate_seq bigint, correlation_id text, traceparent text
    );";

async fn shop(sql: &Sql) -> Result<()> {
    sql.batch_execute(OUTBOX).await?;
    create_shop(sql).await
}

/// Every committed event in the order of commits.
fn in_commit_order(truth: &Truth, commits: &Commits) -> Result<Vec<(Event, String)>> {
    let lsns: HashMap<u32, _> = commits.iter().map(|commit| (commit.xid, commit.commit_lsn)).collect();
    let mut events = Vec::new();
    for event in truth.events() {
        let place = event.place.context("the ledger knows the place")?;
        let commit_lsn = *lsns.get(&place.xid).context("every committed event has a commit")?;
        events.push(((commit_lsn, place.index), event.clone()));
    }
    events.sort_by_key(|(position, _)| *position);
    Ok(events.into_iter().map(|((lsn, index), event)| (event, format!("{lsn}/{index}"))).collect())
}

/// What a flawless relay would send, as far as the oracle looks.
fn parcel(event: &Event, position: &str) -> Parcel {
    let mut headers = vec![
        ("aggregate_type".to_owned(), Value::Text(event.aggregate_type.clone())),
        ("aggregate_id".to_owned(), Value::Text(event.aggregate_id.clone())),
        ("aggregate_seq".to_owned(), Value::Long(event.aggregate_seq)),
        ("postrider_position".to_owned(), Value::Text(position.to_owned())),
    ];
    if event.payload.is_none() {
        headers.push(("payload_null".to_owned(), Value::Bool(true)));
    }
    Parcel {
        properties: Properties {
            message_id: Some(event.id.clone()),
            delivery_mode: Some(2),
            ..Properties::default()
        },
        headers,
        body: event.payload.clone().unwrap_or_default(),
    }
}

fn ids(offenders: &[Offender]) -> Vec<&str> {
    offenders.iter().map(|offender| offender.message_id.as_str()).collect()
}

/// The numbers of each order are 1, 2, 3 … in the order of commits.
fn expect_numbers_in_commit_order(events: &[(Event, String)]) -> Result<()> {
    let mut next = HashMap::new();
    for (event, position) in events {
        let next = next.entry(event.aggregate_id.as_str()).or_insert(1);
        ensure!(event.aggregate_seq == *next, "{event:?} at {position} is not number {next}");
        *next += 1;
    }
    Ok(())
}

#[tokio::test]
async fn what_is_written_published_and_consumed_is_judged() -> Result<()> {
    let scope = Scope::shared("judge").await?;
    let sql = scope.connect().await?;
    shop(&sql).await?;
    sql.batch_execute("create publication p for table postrider.outbox with (publish = 'insert')").await?;
    Commits::watch(&sql, &scope.named("truth")).await?;

    let load = Load {
        orders: 20,
        writers: 8,
        rolled_back: 0.2,
        savepoints: 0.2,
        null_payloads: 0.1,
        ..Load::default()
    };
    let written = write(&scope.admin_url(), &load, 300).await?;
    assert!(written.rolled_back > 20, "{written:?}");
    let backlog = Backlog { transactions: 100, events: 7, orders: 3, ..Backlog::default() };
    backlog.write(&scope.admin_url()).await?;

    let truth = Truth::of_ledger(&sql).await?;
    assert_eq!(truth.len() as u64, written.events + 700, "the ledger says what the writers believe");
    assert!(
        truth.rolled_back() > written.rolled_back,
        "savepoints are rolled back too: {}",
        truth.rolled_back()
    );
    assert_eq!(Truth::of_outbox(&sql, "postrider.outbox").await?.len(), truth.len());
    let commits = Commits::read(&sql, &scope.named("truth"), "p").await?;
    assert_eq!(commits.iter().count() as u64, written.transactions + 100);
    let events = in_commit_order(&truth, &commits)?;
    expect_numbers_in_commit_order(&events)?;

    let queue =
        Queue::bound(&scope.amqp_url(), &scope.named("queue"), QueueKind::Quorum, scope.name()).await?;
    let consumer = Consumer::start(&queue).await?;
    let parcels = |range: std::ops::Range<usize>| -> Vec<_> {
        events[range].iter().map(|(event, position)| parcel(event, position)).collect()
    };
    let send = async |parcels| publish(&scope.amqp_url(), scope.name(), "order.placed", parcels).await;
    send(parcels(0..events.len())).await?;
    let deliveries = consumer.finish(&truth, LIMIT).await?;
    let verdict = judge(&truth, &deliveries, &[]);
    verdict.expect_clean()?;
    assert_eq!((verdict.delivered, verdict.duplicates), (events.len(), 0));
    let delivery = &deliveries[0];
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), (scope.name(), "order.placed"));
    assert_eq!(delivery.headers["aggregate_seq"].letter(), 'l');

    // The same again by reading the queue to its end, with everything wrong that can be.
    let count = events.len();
    let lost = events[count - 1].0.id.clone();
    let mut ghost = parcel(&events[0].0, &events[0].1);
    ghost.properties.message_id = Some("ghost".to_owned());
    let owed = commits.of(&events[10].0).context("event 10 has a commit")?;
    send(parcels(0..12)).await?;
    queue.mark(owed.commit_lsn).await?;
    send(parcels(0..1)).await?;
    send(parcels(10..count - 1)).await?;
    send(vec![ghost]).await?;
    assert_eq!(queue.depth().await? as usize, 12 + 1 + 1 + count - 11 + 1);
    let deliveries = drain(&queue).await?;
    let verdict = judge(&truth, &deliveries, &[]);
    assert_eq!(ids(&verdict.lost), [lost.as_str()], "{verdict}");
    assert_eq!(ids(&verdict.ghosts), ["ghost"], "{verdict}");
    assert_eq!(ids(&verdict.forbidden), [events[0].0.id.as_str()], "{verdict}");
    assert_eq!(verdict.duplicates, 3, "{verdict}");
    assert!(verdict.out_of_order.is_empty() && verdict.altered.is_empty(), "{verdict}");
    assert_eq!(queue.depth().await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_slot_that_passes_an_undelivered_event_is_found() -> Result<()> {
    let scope = Scope::shared("slot").await?;
    let sql = scope.connect().await?;
    shop(&sql).await?;
    sql.batch_execute("create publication p for table postrider.outbox with (publish = 'insert')").await?;
    Commits::watch(&sql, &scope.named("truth")).await?;
    let load = Load { rolled_back: 0.0, writers: 1, ..Load::default() };
    write(&scope.admin_url(), &load, 3).await?;
    let truth = Truth::of_ledger(&sql).await?;
    let slot = Slot::read(&sql, &scope.named("truth")).await?.context("there is a slot")?;
    let commits = Commits::read(&sql, &scope.named("truth"), "p").await?;
    assert!(slot.passed_undelivered(&truth, &commits, &[]).is_empty());

    let first = *commits.iter().next().context("there is a commit")?;
    let advance = "select pg_replication_slot_advance($1::text, $2)";
    sql.execute(advance, &[&scope.named("truth"), &first.end_lsn]).await?;
    let slot = Slot::wait(&sql, &scope.named("truth"), "advanced", LIMIT, |slot| {
        slot.confirmed_flush_lsn >= first.end_lsn
    })
    .await?;
    let passed = slot.passed_undelivered(&truth, &commits, &[]);
    let expected = truth.events().filter(|event| commits.of(event) == Some(first)).count();
    assert!(expected > 0);
    assert_eq!(passed.len(), expected, "{passed:?}");
    assert!(Slot::read(&sql, "no_such_slot").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn writer_and_consumer_come_back_with_their_servers() -> Result<()> {
    let mut pair = Pair::private(PostgresOptions::default(), RabbitMqOptions::default()).await?;
    let sql = pair.postgres.connect("postgres").await?;
    shop(&sql).await?;
    let url = pair.postgres.admin_url("postgres");
    let mut writer = Writer::start(&url, &Load { orders: 10, ..Load::default() });
    writer.wait_events(100, LIMIT).await?;
    pair.postgres.stop(Stop::Immediate).await?;
    pair.postgres.start_again().await?;
    writer.wait_events(100, LIMIT).await?;
    let written = writer.stop().await?;
    assert!(written.broken > 0, "the server broke under load: {written:?}");
    let sql = pair.postgres.connect("postgres").await?;
    let truth = Truth::of_ledger(&sql).await?;
    let committed = truth.len() as u64;
    assert!(committed >= written.events && committed <= written.events + 4 * written.broken, "{written:?}");
    let mut seqs: HashMap<&str, Vec<i64>> = HashMap::new();
    truth.events().for_each(|event| seqs.entry(&event.aggregate_id).or_default().push(event.aggregate_seq));
    for (order, mut seqs) in seqs {
        seqs.sort_unstable();
        let expected: Vec<_> = (1..).take(seqs.len()).collect();
        assert_eq!(seqs, expected, "order {order}");
    }

    let amqp = pair.rabbitmq.guest_url();
    let queue = Queue::bound(&amqp, "q", QueueKind::Classic, "x").await?;
    let consumer = Consumer::start(&queue).await?;
    let events: Vec<_> = truth.events().take(100).map(|event| parcel(event, "0/1/0")).collect();
    publish(&amqp, "x", "k", events[..50].to_vec()).await?;
    consumer.wait_distinct(50, LIMIT).await?;
    pair.rabbitmq.stop().await?;
    pair.rabbitmq.start_again().await?;
    publish(&amqp, "x", "k", events[50..].to_vec()).await?;
    consumer.wait_distinct(100, LIMIT).await?;
    let deliveries = consumer.stop().await?;
    assert_eq!(deliveries.last().map(|delivery| delivery.session), Some(1));
    let verdict: Verdict = judge(&truth, &deliveries, &[]);
    assert_eq!((verdict.delivered, verdict.duplicates), (100, 0), "{verdict}");
    Ok(())
}
