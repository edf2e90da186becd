//! An application that writes one event a transaction, at a steady rate, and knows when each was committed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testenv::Sql;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

/// Each waits for the disk at every commit: enough of them for the rate, on a disk that takes 10 ms.
const CONNECTIONS: u32 = 16;
const INSERT: &str = "
    insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, aggregate_seq)
    values ('order', $1, 'placed', $2::text::json, $3)
    returning id::text";

/// Running connections.
pub(super) struct Writer {
    stop: watch::Sender<bool>,
    tasks: JoinSet<Result<Vec<Written>>>,
}

/// One committed event.
pub(super) struct Written {
    pub(super) id: String,
    /// When the insert, which commits by itself, was sent.
    pub(super) sent: Instant,
    /// When its answer came.
    pub(super) answered: Instant,
}

impl Writer {
    /// Starts to write so many events a second.
    pub(super) fn start(url: &str, rate: u32) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for number in 0..CONNECTIONS {
            tasks.spawn(write(url.to_owned(), rate, number, stopped.clone()));
        }
        Self { stop, tasks }
    }

    /// Ends after what is under way; returns all that was written.
    pub(super) async fn stop(mut self) -> Result<Vec<Written>> {
        self.stop.send_replace(true);
        let mut all = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            all.extend(ended.context("run a writer")??);
        }
        Ok(all)
    }
}

async fn write(url: String, rate: u32, number: u32, stopped: watch::Receiver<bool>) -> Result<Vec<Written>> {
    let sql = Sql::connect(&url).await?;
    let insert = sql.prepare(INSERT).await.context("prepare the insert")?;
    let mut random = fastrand::Rng::with_seed(number.into());
    let mut written = Vec::new();
    // In turn, not all at once.
    let beat = Duration::from_secs(CONNECTIONS.into()) / rate;
    sleep(beat * number / CONNECTIONS).await;
    let mut beat = interval(beat);
    for seq in 1_i64.. {
        if *stopped.borrow() {
            break;
        }
        beat.tick().await;
        let aggregate = random.u32(..10_000).to_string();
        let payload = format!("{:x<298}\"}}", format!("{{\"order\":{seq},\"note\":\""));
        let sent = Instant::now();
        let row = sql.query_one(&insert, &[&aggregate, &payload, &seq]).await.context("insert an event")?;
        written.push(Written { id: row.get(0), sent, answered: Instant::now() });
    }
    Ok(written)
}
