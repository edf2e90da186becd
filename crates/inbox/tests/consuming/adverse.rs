//! What would lose messages or hold them back for ever: an error that a handler keeps to itself, a statement without
//! end, an id that the database cannot hold, a hook that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use postrider_inbox::Inbox;
use postrider_inbox::consumer::{Event, Gap, GapAnswer, Handle, HandleError};
use testenv::{Sql, eventually};
use tokio::sync::Notify;
use tokio_postgres::Transaction;

use crate::messages::Work;
use crate::station::{LIMIT, Station, message, numbered};

/// Asks the server for something that does not end.
struct Endless;

impl Handle for Endless {
    async fn handle(&self, _: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        transaction.execute("select pg_sleep(100000)", &[]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_statement_without_end_is_an_attempt_and_does_not_go_on() -> Result<()> {
    let mut station = Station::new("loop endless").await?;
    station.settings.handle_limit = Duration::from_secs(1);
    station.settings.attempts = 3;
    station.publish(vec![message("E-1", "good")]).await?;
    let running = station.run(Endless);
    let parked = station.parked().await?;
    assert_eq!(parked.text("inbox_parked_reason"), Some("exhausted"));
    assert_eq!(parked.text("inbox_parked_error"), Some("it was not handled within 1s"));
    running.stop().await?;
    let sleeping = "select count(*) from pg_stat_activity where datname = current_database()
        and query like '%pg_sleep(100000)' and state = 'active'";
    station.wait_number(sleeping, 0).await?;
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

/// Sees its statement fail, and says that all is well.
struct Discreet;

impl Handle for Discreet {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        transaction.execute("insert into handled values (default, $1)", &[&event.message_id]).await?;
        let _ = transaction.execute("insert into once values ('taken')", &[]).await;
        Ok(())
    }
}

#[tokio::test]
async fn work_that_hides_an_error_of_its_transaction_has_failed() -> Result<()> {
    let mut station = Station::new("loop hidden").await?;
    station.settings.attempts = 2;
    station.publish(vec![message("E-1", "good")]).await?;
    let running = station.run(Discreet);
    let parked = station.parked().await?;
    assert_eq!(parked.text("inbox_parked_reason"), Some("exhausted"));
    let error = parked.text("inbox_parked_error").unwrap_or_default();
    assert!(error.contains("current transaction is aborted"), "{error}");
    let counts = running.stop().await?;
    assert_eq!((counts.handled, counts.retries, counts.parked), (0, 1, 1));
    assert_eq!(station.number("select count(*) from handled").await?, 0);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn an_id_that_the_database_cannot_hold_is_parked() -> Result<()> {
    let station = Station::new("loop nul").await?;
    station.publish(vec![message("E\0one", "good"), message("E-2", "good")]).await?;
    let running = station.run(Work::default());
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), parked.text("inbox_parked_reason")), ("E\0one", Some("poison")));
    let counts = running.stop().await?;
    assert_eq!((counts.parked, counts.handled), (1, 1));
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

/// Waits long enough in its work for the hook to panic meanwhile, and counts how often it began.
struct Panics {
    begun: Arc<AtomicU32>,
    panicked: Arc<Notify>,
}

impl Handle for Panics {
    async fn handle(&self, _: &Event, _: &Transaction<'_>) -> Result<(), HandleError> {
        self.begun.fetch_add(1, Relaxed);
        self.panicked.notified().await;
        Ok(())
    }

    async fn gap(&self, _: &Gap) -> GapAnswer {
        self.panicked.notify_one();
        panic!("the hook's own bug")
    }
}

#[tokio::test]
async fn a_hook_that_panics_interrupts_nobody() -> Result<()> {
    let mut station = Station::new("loop gap panic").await?;
    station.settings.check_sequence = true;
    station.settings.early_wait = Duration::from_millis(200);
    station.publish(vec![message("E-1", "good")]).await?;
    let (begun, panicked) = (Arc::default(), Arc::default());
    let hook = Panics { begun: Arc::clone(&begun), panicked };
    let running = station.run_as(Inbox::new("worker").start_at_one(), station.urls.clone(), hook);
    eventually("the work to begin", LIMIT, async || Ok((begun.load(Relaxed) == 1).then_some(()))).await?;
    station.publish(vec![numbered("o1", 2, "good")]).await?;
    running.wait("the work to be done", |counts| counts.handled == 1).await?;
    running.wait("the gap to stay", |counts| counts.early >= 3).await?;
    running.stop().await?;
    assert_eq!(begun.load(Relaxed), 1);
    assert_eq!(station.queue.left().await?, 1);
    Ok(())
}

/// Fails with words that not every database can hold.
struct Wordy;

impl Handle for Wordy {
    async fn handle(&self, _: &Event, _: &Transaction<'_>) -> Result<(), HandleError> {
        Err(HandleError::transient("no paper \u{2192} no report"))
    }
}

#[tokio::test]
async fn an_error_that_the_database_cannot_hold_is_an_attempt_like_any() -> Result<()> {
    let mut station = Station::new("loop latin").await?;
    let name = station.scope.named("latin");
    let create = format!(
        "create database \"{name}\" encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0"
    );
    station.sql.batch_execute(&create).await?;
    station.urls.database = station.scope.addresses().admin_url(&name);
    let latin = Sql::connect(&station.urls.database).await?;
    latin.batch_execute(postrider_inbox::INBOX_SQL).await?;
    station.settings.attempts = 3;
    station.publish(vec![message("E-1", "good")]).await?;
    let running = station.run(Wordy);
    let parked = station.parked().await?;
    assert_eq!(parked.text("inbox_parked_reason"), Some("exhausted"));
    assert_eq!(parked.text("inbox_parked_error"), Some("no paper \u{2192} no report"));
    running.stop().await?;
    let row = latin.query_one("select attempts, last_error from postrider.inbox", &[]).await?;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (3, "no paper ? no report"));
    Ok(())
}
