//! Messages that go well, and those that are not tried a second time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use postrider_inbox::consumer::{Event, Handle, HandleError};
use tokio_postgres::Transaction;

use crate::station::{LIMIT, Station, message, numbered};

/// Writes what it handles; fails as the event's type says.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) tried: Mutex<HashMap<String, u32>>,
    pub(crate) takes: Duration,
}

impl Handle for Work {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        let write = "insert into handled (id, aggregate, seq) values ($1, $2, $3)";
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&event.message_id, &event.aggregate_id, &event.aggregate_seq];
        transaction.execute(write, &row).await?;
        tokio::time::sleep(self.takes).await;
        let tried = {
            let mut tried = self.tried.lock().expect("no holder panics");
            let tried = tried.entry(event.message_id.clone()).or_default();
            *tried += 1;
            *tried
        };
        match event.event_type.as_str() {
            "poison" => Err(HandleError::poison("it cannot be read")),
            "never" => Err(HandleError::transient("no paper")),
            "twice" if tried <= 2 => Err(HandleError::transient("no paper")),
            "panic" if tried <= 1 => panic!("the handler's own bug"),
            "unique" => {
                transaction.execute("insert into once values ('taken')", &[]).await?;
                Ok(())
            }
            "slow" if tried <= 1 => {
                tokio::time::sleep(LIMIT).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn a_message_that_comes_twice_is_handled_once() -> Result<()> {
    let station = Station::new("loop twice").await?;
    station.sql.batch_execute("create table report as select 6::bigint as counter").await?;
    station.publish(vec![message("E-42", "good"), message("E-42", "good")]).await?;
    let running = station.run(Report);
    running.wait("both to be acknowledged", |counts| counts.handled + counts.duplicates == 2).await?;
    let counts = running.stop().await?;
    assert_eq!((counts.handled, counts.duplicates, counts.parked), (1, 1, 0));
    assert_eq!(station.number("select counter from report").await?, 7);
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

struct Report;

impl Handle for Report {
    async fn handle(&self, _: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        transaction.execute("update report set counter = counter + 1", &[]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn aggregates_stay_in_order_while_some_of_their_messages_fail() -> Result<()> {
    let station = Station::new("loop order").await?;
    let (aggregates, numbers) = (10, 15);
    let mut parcels = Vec::new();
    for seq in 1..=numbers {
        for aggregate in 0..aggregates {
            let kind = if (seq + aggregate) % 7 == 0 { "twice" } else { "good" };
            parcels.push(numbered(&format!("o{aggregate}"), seq, kind));
        }
    }
    station.publish(parcels).await?;
    let running = station.run(Work::default());
    station.wait_number("select count(*) from handled", aggregates * numbers).await?;
    let counts = running.stop().await?;
    for aggregate in 0..aggregates {
        let handled = station.handled(&format!("o{aggregate}")).await?;
        assert_eq!(handled, (1..=numbers).collect::<Vec<_>>(), "o{aggregate}");
    }
    assert!(counts.retries > 0 && counts.parked == 0, "{counts:?}");
    assert_eq!(station.queue.left().await?, 0);
    Ok(())
}

#[tokio::test]
async fn stopping_waits_for_what_is_at_work_and_leaves_the_rest() -> Result<()> {
    let mut station = Station::new("loop stop").await?;
    station.settings.workers = 2;
    station.publish((0..20).map(|n| message(&format!("E-{n}"), "good")).collect()).await?;
    let running = station.run(Work { takes: Duration::from_millis(300), ..Work::default() });
    running.wait("two to be at work", |counts| counts.in_progress == 2).await?;
    let counts = running.stop().await?;
    assert!(counts.handled >= 2 && counts.handled < 20, "{counts:?}");
    assert_eq!(station.number("select count(*) from handled").await?, i64::try_from(counts.handled)?);
    // What was committed was acknowledged; nothing of the rest is a duplicate.
    let running = station.run(Work::default());
    station.wait_number("select count(*) from handled", 20).await?;
    assert_eq!(running.stop().await?.duplicates, 0);
    Ok(())
}
