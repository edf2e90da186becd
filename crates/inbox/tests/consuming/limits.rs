//! Settings and messages at their limits: nothing waits for ever, nothing spins, nothing is thrown out of its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_inbox::Inbox;
use postrider_inbox::consumer::{
    BoxError, Connect, Database, Event, Handle, HandleError, Retry, Settings, Urls,
};
use testenv::consumer::{Queue, QueueKind, Value};
use testenv::eventually;
use tokio_postgres::Transaction;

use crate::messages::Work;
use crate::station::{LIMIT, Station, message};

#[tokio::test]
async fn a_worker_takes_the_messages_in_the_order_of_their_delivery() -> Result<()> {
    let mut station = Station::new("loop fair").await?;
    station.settings.workers = 1;
    station.settings.prefetch = 32;
    let ids: Vec<String> = (0..200).map(|n| format!("E-{n}")).collect();
    station.publish(ids.iter().map(|id| message(id, "good")).collect()).await?;
    let running = station.run(Work::default());
    station.wait_number("select count(*) from handled", 200).await?;
    running.stop().await?;
    let handled = station.sql.query("select id from handled order by place", &[]).await?;
    assert_eq!(handled.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ids);
    Ok(())
}

#[tokio::test]
async fn giving_back_what_waits_does_not_end_the_work_at_hand() -> Result<()> {
    let mut station = Station::new("loop hold work").await?;
    station.settings.workers = 1;
    station.settings.hold_limit = Duration::from_secs(1);
    station.settings.drain_limit = Duration::from_millis(100);
    station.publish((0..2).map(|n| message(&format!("E-{n}"), "good")).collect()).await?;
    let running = station.run(Work { takes: Duration::from_secs(3), ..Work::default() });
    station.wait_number("select count(*) from handled", 2).await?;
    running.stop().await?;
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn telling_it_to_stop_ends_its_patience_with_the_work_at_hand() -> Result<()> {
    let mut station = Station::new("loop hold stop").await?;
    station.settings.workers = 1;
    station.settings.hold_limit = Duration::from_secs(1);
    station.settings.handle_limit = Duration::from_secs(3600);
    station.settings.drain_limit = Duration::from_millis(100);
    station.publish((0..2).map(|n| message(&format!("E-{n}"), "slow")).collect()).await?;
    let running = station.run(Work { takes: Duration::from_secs(3600), ..Work::default() });
    running.wait("one to be at work", |counts| counts.in_progress == 1).await?;
    // By now it waits for that one to give the other back.
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.stop().await?;
    assert_eq!(station.queue.left().await?, 2);
    Ok(())
}

#[tokio::test]
async fn settings_of_nothing_or_without_end_work() -> Result<()> {
    let mut station = Station::new("loop extremes").await?;
    for (round, duration) in [(0, Duration::ZERO), (1, Duration::MAX)] {
        station.settings = Settings {
            prefetch: 0,
            workers: 0,
            attempts: 0,
            retry: Retry { first: duration, max: duration, jitter: f64::INFINITY },
            check_sequence: true,
            early_wait: duration,
            handle_limit: Duration::MAX,
            hold_limit: duration,
            drain_limit: duration,
            ..station.settings
        };
        let id = format!("E-{round}");
        station.publish(vec![message(&id, "twice"), message(&format!("{id}-good"), "good")]).await?;
        let running = station.run(Work::default());
        assert_eq!(station.parked().await?.message_id(), id);
        station.wait_number("select count(*) from handled", round + 1).await?;
        running.stop().await?;
        assert_eq!(station.queue.left().await?, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_consumer_of_no_name_parks_nothing() -> Result<()> {
    let station = Station::new("loop no name").await?;
    station.publish(vec![message("E-1", "good")]).await?;
    let running = station.run_as(Inbox::new(""), station.urls.clone(), Work::default());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(running.stop().await?.parked, 0);
    assert_eq!(station.queue.left().await?, 1);
    Ok(())
}

#[tokio::test]
async fn what_has_no_room_for_the_reason_is_parked_nevertheless() -> Result<()> {
    let station = Station::new("loop large headers").await?;
    // The frame has 131,072 bytes.
    for (bytes, reason) in [(131_000, None), (130_000, Some("poison"))] {
        let mut parcel = message("E-1", "poison");
        parcel.headers = vec![("large".to_owned(), Value::Text("x".repeat(bytes)))];
        station.publish(vec![parcel]).await?;
        let running = station.run(Work::default());
        let parked = station.parked().await?;
        assert_eq!((parked.message_id(), parked.text("large").map(str::len)), ("E-1", Some(bytes)));
        assert_eq!(parked.text("inbox_parked_reason"), reason);
        running.stop().await?;
        assert_eq!(station.queue.left().await?, 0);
    }
    Ok(())
}

/// Connects to a database that is away until it is told otherwise.
struct Away {
    urls: Urls,
    there: Arc<AtomicBool>,
    sessions: Arc<AtomicU32>,
    refused: Arc<AtomicU32>,
}

impl Connect for Away {
    async fn broker(&self) -> Result<lapin::Connection, BoxError> {
        self.sessions.fetch_add(1, Relaxed);
        self.urls.broker().await
    }

    async fn database(&self) -> Result<Database, BoxError> {
        if self.there.load(Relaxed) {
            return self.urls.database().await;
        }
        self.refused.fetch_add(1, Relaxed);
        Err("the database is away".into())
    }
}

#[tokio::test]
async fn an_outage_of_the_database_does_not_use_up_the_deliveries_of_a_quorum_queue() -> Result<()> {
    let mut station = Station::new("loop deliveries").await?;
    let name = station.scope.named("limited");
    let limit = [("x-delivery-limit", Value::Long(2))];
    let queue = Queue::declare(station.queue.url(), &name, QueueKind::Quorum, &limit).await?;
    station.settings.queue = name;
    station.settings.hold_limit = Duration::from_secs(1);
    station.queue = queue;
    station.publish(vec![message("E-1", "good")]).await?;
    let (there, sessions, refused) = (Arc::default(), Arc::default(), Arc::default());
    let connect = Away {
        urls: station.urls.clone(),
        there: Arc::clone(&there),
        sessions: Arc::clone(&sessions),
        refused: Arc::clone(&refused),
    };
    let _running = station.run_as(Inbox::new("worker"), connect, Work::default());
    eventually("the database to be asked", LIMIT, async || {
        let (sessions, refused) = (sessions.load(Relaxed), refused.load(Relaxed));
        Ok((sessions > 3 || sessions == 0 && refused > 4).then_some(()))
    })
    .await?;
    there.store(true, Relaxed);
    station.wait_number("select count(*) from handled", 1).await.context("handle it after the outage")
}

/// Ends the transaction behind the loop's back.
struct Ends(&'static str);

impl Handle for Ends {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        transaction.batch_execute(self.0).await?;
        transaction.execute("insert into handled values (default, $1)", &[&event.message_id]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn work_that_rolls_its_own_claim_back_has_failed() -> Result<()> {
    let mut station = Station::new("loop own rollback").await?;
    station.settings.attempts = 2;
    station.publish(vec![message("E-1", "good")]).await?;
    let running = station.run(Ends("rollback"));
    let parked = station.parked().await?;
    assert_eq!(parked.text("inbox_parked_reason"), Some("exhausted"));
    assert_eq!(running.stop().await?.handled, 0);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}
