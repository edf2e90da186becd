//! Messages that come before the ones they follow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use postrider_inbox::Inbox;
use postrider_inbox::consumer::{Event, Gap, GapAnswer, Handle, HandleError};
use tokio_postgres::Transaction;

use crate::messages::Work;
use crate::station::{LIMIT, Station, numbered};

async fn station(test: &str, early_wait: Duration) -> Result<Station> {
    let mut station = Station::new(test).await?;
    station.settings.check_sequence = true;
    station.settings.early_wait = early_wait;
    Ok(station)
}

fn strict() -> Inbox {
    Inbox::new("worker").start_at_one()
}

/// Answers gaps, and remembers them.
struct Hook {
    work: Work,
    answer: GapAnswer,
    seen: Arc<Mutex<Vec<Gap>>>,
}

impl Handle for Hook {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        self.work.handle(event, transaction).await
    }

    async fn gap(&self, gap: &Gap) -> GapAnswer {
        self.seen.lock().expect("no holder panics").push(gap.clone());
        self.answer
    }
}

#[tokio::test]
async fn early_ones_are_held_and_handled_in_order() -> Result<()> {
    let station = station("loop early", LIMIT).await?;
    station.publish([1, 2, 4, 3, 5].map(|seq| numbered("o1", seq, "good")).to_vec()).await?;
    let running = station.run_as(strict(), station.urls.clone(), Work::default());
    station.wait_number("select count(*) from handled", 5).await?;
    let counts = running.stop().await?;
    assert_eq!(station.handled("o1").await?, [1, 2, 3, 4, 5]);
    assert!(counts.early >= 1 && counts.parked == 0, "{counts:?}");
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn what_misses_its_elders_is_parked_in_order_after_the_deadline() -> Result<()> {
    let station = station("loop gap parked", Duration::from_millis(500)).await?;
    station.publish([1, 2, 5, 4].map(|seq| numbered("o1", seq, "good")).to_vec()).await?;
    let seen = Arc::default();
    let hook = Hook { work: Work::default(), answer: GapAnswer::Park, seen: Arc::clone(&seen) };
    let running = station.run_as(strict(), station.urls.clone(), hook);
    for id in ["o1-4", "o1-5"] {
        let parked = station.parked().await?;
        assert_eq!((parked.message_id(), parked.text("inbox_parked_reason")), (id, Some("early")));
    }
    running.stop().await?;
    let gap = Gap { aggregate: "order/o1".to_owned(), waiting: vec![4, 5] };
    assert_eq!(*seen.lock().expect("no holder panics"), [gap]);
    assert_eq!(station.handled("o1").await?, [1, 2]);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_hook_that_resynchronises_goes_on_behind_the_gap_and_late_ones_are_stale() -> Result<()> {
    let station = station("loop gap closed", Duration::from_millis(500)).await?;
    station.publish([1, 2, 5, 4].map(|seq| numbered("o1", seq, "good")).to_vec()).await?;
    let seen = Arc::default();
    let hook = Hook { work: Work::default(), answer: GapAnswer::Resynchronise, seen: Arc::clone(&seen) };
    let running = station.run_as(strict(), station.urls.clone(), hook);
    station.wait_number("select count(*) from handled", 4).await?;
    station.publish(vec![numbered("o1", 3, "good")]).await?;
    running.wait("the late one to be stale", |counts| counts.stale == 1).await?;
    running.stop().await?;
    assert_eq!(station.handled("o1").await?, [1, 2, 4, 5]);
    assert_eq!(seen.lock().expect("no holder panics").len(), 1);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}
