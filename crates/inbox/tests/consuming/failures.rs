//! Messages that cannot be handled: tried again or parked, never lost, never in the way.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use postrider_inbox::consumer::Retry;
use testenv::consumer::{Delivery, Value};

use crate::messages::Work;
use crate::station::{Station, message, numbered};

const FAILED: &str = "select coalesce(
    (select attempts from postrider.inbox where status = 'failed' and message_id = 'E-1'), 0)::bigint";

fn check_parked(parked: &Delivery, reason: &str, error: &str, attempts: i32) -> Result<()> {
    assert_eq!(parked.text("inbox_parked_reason"), Some(reason));
    assert_eq!(parked.text("inbox_parked_error"), Some(error));
    assert_eq!(parked.headers.get("inbox_parked_attempts"), Some(&Value::Int(attempts)));
    let Some(Value::Timestamp(since)) = parked.headers.get("inbox_parked_first_failure") else {
        anyhow::bail!("when it first failed is missing")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?.as_secs();
    assert!((now - 600..=now + 600).contains(since), "{since}");
    Ok(())
}

#[tokio::test]
async fn poison_is_parked_at_once_and_others_flow() -> Result<()> {
    let station = Station::new("loop poison").await?;
    let mut parcels = vec![message("E-1", "poison")];
    parcels.extend((2..30).map(|n| message(&format!("E-{n}"), "good")));
    station.publish(parcels).await?;
    let running = station.run(Work::default());
    let parked = station.parked().await?;
    check_parked(&parked, "poison", "it cannot be read", 1)?;
    assert_eq!((parked.message_id(), parked.body.as_slice()), ("E-1", &b"E-1"[..]));
    assert_eq!(parked.properties.message_type.as_deref(), Some("poison"));
    assert_eq!(parked.text("inbox_parked_consumer"), Some("worker"));
    assert_eq!(parked.text("inbox_parked_queue"), Some(station.queue.name()));
    station.wait_number("select count(*) from handled", 28).await?;
    assert_eq!(running.stop().await?.parked, 1);
    assert_eq!(station.number(FAILED).await?, 1);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_message_without_an_id_is_parked() -> Result<()> {
    let station = Station::new("loop no id").await?;
    let mut parcel = message("E-1", "good");
    parcel.properties.message_id = None;
    station.publish(vec![parcel]).await?;
    let running = station.run(Work::default());
    let parked = station.parked().await?;
    assert_eq!(parked.text("inbox_parked_reason"), Some("poison"));
    let error = parked.text("inbox_parked_error").context("why it is parked")?;
    assert!(error.contains("message_id must have 1 to 255 bytes"), "{error}");
    running.stop().await?;
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_same_id_with_other_content_is_parked_and_overwrites_nothing() -> Result<()> {
    let station = Station::new("loop mismatch").await?;
    let mut other = message("E-1", "good");
    other.body = b"something else".to_vec();
    station.publish(vec![message("E-1", "good"), other]).await?;
    let running = station.run(Work::default());
    let parked = station.parked().await?;
    check_parked(&parked, "mismatch", "its id was completed with other content", 0)?;
    // Side by side either may be the first; the other one is here.
    assert_eq!(station.number("select count(*) from handled where id = 'E-1'").await?, 1);
    let counts = running.stop().await?;
    assert_eq!((counts.handled, counts.mismatches, counts.parked), (1, 1, 1));
    Ok(())
}

#[tokio::test]
async fn a_message_that_goes_on_failing_is_parked_after_its_attempts_also_over_restarts() -> Result<()> {
    let mut station = Station::new("loop exhausted").await?;
    station.settings.attempts = 4;
    station.publish(vec![message("E-1", "never")]).await?;
    // The first process ends after its first failure, and waits long enough for that.
    let fast = station.settings.retry;
    station.settings.retry =
        Retry { first: Duration::from_secs(3600), max: Duration::from_secs(3600), ..fast };
    let running = station.run(Work::default());
    station.wait_number(FAILED, 1).await?;
    drop(running);
    station.settings.retry = fast;
    let running = station.run(Work::default());
    check_parked(&station.parked().await?, "exhausted", "no paper", 4)?;
    let counts = running.stop().await?;
    assert_eq!((counts.retries, counts.parked, counts.handled), (2, 1, 0));
    assert_eq!(station.number("select count(*) from handled").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_panic_a_hang_and_a_unique_violation_are_failures_of_one_message() -> Result<()> {
    let mut station = Station::new("loop panic").await?;
    station.settings.handle_limit = Duration::from_secs(2);
    station
        .publish(vec![
            message("E-panic", "panic"),
            message("E-slow", "slow"),
            message("E-unique", "unique"),
            message("E-good", "good"),
        ])
        .await?;
    let running = station.run(Work::default());
    for id in ["E-panic", "E-slow", "E-good"] {
        station.wait_number(&format!("select count(*) from handled where id = '{id}'"), 1).await?;
    }
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), parked.text("inbox_parked_reason")), ("E-unique", Some("exhausted")));
    let counts = running.stop().await?;
    assert_eq!(counts.unique_violations, u64::from(station.settings.attempts));
    assert_eq!((counts.handled, counts.parked), (3, 1));
    let slow = "select attempts::bigint from postrider.inbox where message_id = 'E-slow'
        and last_error like 'it was not%'";
    assert_eq!(station.number(slow).await?, 2);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_parked_is_not_acknowledged() -> Result<()> {
    let station = Station::without_parking("loop no parking").await?;
    station.publish(vec![message("E-1", "poison"), message("E-2", "good")]).await?;
    let running = station.run(Work::default());
    station.wait_number(FAILED, 1).await?;
    station.wait_number("select count(*) from handled", 1).await?;
    assert_eq!(running.stop().await?.parked, 0);
    assert_eq!(station.queue.left().await?, 1);
    station.open_parking().await?;
    let running = station.run(Work::default());
    let parked = station.parked().await?;
    check_parked(&parked, "poison", "it cannot be read", 2)?;
    running.stop().await?;
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn what_waits_too_long_is_given_back_to_the_queue_in_order() -> Result<()> {
    let mut station = Station::new("loop hold").await?;
    station.settings.retry =
        Retry { first: Duration::from_secs(3600), max: Duration::from_secs(3600), jitter: 0.0 };
    station.settings.hold_limit = Duration::from_secs(1);
    station.settings.attempts = 3;
    station
        .publish((1..=3).map(|seq| numbered("o1", seq, if seq == 1 { "twice" } else { "good" })).collect())
        .await?;
    // Only being given back makes it come again: its pause is an hour.
    let running = station.run(Work::default());
    station.wait_number("select count(*) from handled", 3).await?;
    running.stop().await?;
    assert_eq!(station.handled("o1").await?, [1, 2, 3]);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}
