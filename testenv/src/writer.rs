//! A shop that writes outbox rows in real transactions, and keeps its own books in the same transactions.
//!
//! Each event belongs to an order, whose row stays locked from the first event until the commit: so the commit
//! order of one aggregate's events is the order of its `aggregate_seq`, 1, 2, 3 … without gaps, however many
//! writers there are. What was committed is never the writer's word but the ledger's
//! ([`crate::oracle::Truth::of_ledger`]).

mod backlog;
mod ledger;
mod transaction;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::eventually;
use transaction::{End, Pen, Script};

pub use backlog::Backlog;
pub use ledger::create as create_shop;

/// Between two tries to reach a server that is away.
const PAUSE: Duration = Duration::from_millis(50);

/// What to write, and how fast.
#[derive(Clone, Debug)]
pub struct Load {
    /// How many different orders the events belong to.
    pub orders: u32,
    /// How many connections write at once.
    pub writers: u32,
    /// Events in one transaction.
    pub events: RangeInclusive<u32>,
    /// The share of transactions that are rolled back at their end, from 0 to 1.
    pub rolled_back: f64,
    /// The share of events that are followed by one more, written in a savepoint and rolled back with it.
    pub savepoints: f64,
    /// The share of events whose payload is SQL NULL.
    pub null_payloads: f64,
    /// The size of a payload, at least about a hundred bytes.
    pub payload_bytes: usize,
    /// All writers together; none: as fast as Postgres takes it.
    pub transactions_per_second: Option<f64>,
    /// The outbox table.
    pub outbox: String,
    /// What the choices are drawn from.
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            orders: 200,
            writers: 4,
            events: 1..=4,
            rolled_back: 0.1,
            savepoints: 0.1,
            null_payloads: 0.02,
            payload_bytes: 300,
            transactions_per_second: None,
            outbox: "postrider.outbox".to_owned(),
            seed: 1,
        }
    }
}

/// What the writers believe to have done. It is for progress and for asserting that a test was under load; the
/// ledger alone says what is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Committed transactions.
    pub transactions: u64,
    /// Events in them.
    pub events: u64,
    /// Transactions rolled back on purpose.
    pub rolled_back: u64,
    /// Transactions that broke with their connection, or in a deadlock; some of them may be committed.
    pub broken: u64,
}

/// Running writers; dropping it ends them in the middle of what they do.
#[derive(Debug)]
pub struct Writer {
    books: Arc<Books>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Result<()>>,
}

/// What the writers share.
#[derive(Debug, Default)]
struct Books {
    transactions: AtomicU64,
    events: AtomicU64,
    rolled_back: AtomicU64,
    broken: AtomicU64,
    commit_times: Mutex<HashMap<String, Instant>>,
}

impl Writer {
    /// Starts the writers; the shop must have been created ([`create_shop`]).
    pub fn start(url: &str, load: &Load) -> Self {
        Self::spawn(url, load, None)
    }

    fn spawn(url: &str, load: &Load, limit: Option<u64>) -> Self {
        let books = Arc::new(Books::default());
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for number in 0..load.writers {
            let shift = Shift {
                url: url.to_owned(),
                load: load.clone(),
                random: fastrand::Rng::with_seed(load.seed.wrapping_mul(1 << 16).wrapping_add(number.into())),
                limit: limit.map(|limit| share(limit, load.writers, number)),
                books: Arc::clone(&books),
            };
            tasks.spawn(shift.work(stopped.clone()));
        }
        Self { books, stop, tasks }
    }

    /// What has been done so far.
    pub fn written(&self) -> Written {
        self.books.written()
    }

    /// When the writers sent COMMIT for each event that was committed since the last call, by message id.
    pub fn take_commit_times(&self) -> HashMap<String, Instant> {
        std::mem::take(&mut self.books.commit_times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until so many more events are committed than now.
    pub async fn wait_events(&self, more: u64, limit: Duration) -> Result<()> {
        let goal = self.written().events + more;
        eventually(&format!("{more} more events"), limit, async || {
            Ok((self.written().events >= goal).then_some(()))
        })
        .await
    }

    /// Ends the writers after the transactions they are in.
    ///
    /// # Errors
    /// What a writer stumbled over: anything but a lost connection or a deadlock.
    pub async fn stop(&mut self) -> Result<Written> {
        self.stop.send_replace(true);
        self.join().await
    }

    async fn join(&mut self) -> Result<Written> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("run a writer")??;
        }
        Ok(self.written())
    }
}

/// Writes so many transactions, committed and rolled back ones together, and returns.
pub async fn write(url: &str, load: &Load, transactions: u64) -> Result<Written> {
    let mut writer = Writer::spawn(url, load, Some(transactions));
    let written = writer.join().await?;
    let done = written.transactions + written.rolled_back + written.broken;
    ensure!(done == transactions, "write {transactions} transactions: only {done}");
    Ok(written)
}

/// How many of `total` the worker with this number does.
fn share(total: u64, workers: u32, number: u32) -> u64 {
    let (workers, number) = (u64::from(workers), u64::from(number));
    total / workers + u64::from(number < total % workers)
}

/// One writer's work.
struct Shift {
    url: String,
    load: Load,
    random: fastrand::Rng,
    limit: Option<u64>,
    books: Arc<Books>,
}

impl Shift {
    async fn work(mut self, stopped: watch::Receiver<bool>) -> Result<()> {
        let mut pen = Pen::connect(&self.url, &self.load.outbox).await.context("start a writer")?;
        let mut beat = self.load.transactions_per_second.map(|rate| {
            let mut beat = interval(Duration::from_secs_f64(f64::from(self.load.writers) / rate));
            // After an outage the rate goes on; nothing is caught up.
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            beat
        });
        let mut done = 0;
        while !*stopped.borrow() && self.limit.is_none_or(|limit| done < limit) {
            if let Some(beat) = &mut beat {
                beat.tick().await;
            }
            let script = Script::draw(&self.load, &mut self.random);
            let end = pen.play(&script).await?;
            let is_lost = matches!(end, End::Lost);
            self.books.enter(end);
            done += 1;
            if is_lost {
                let Some(fresh) = self.reconnect(&stopped).await else { break };
                pen = fresh;
            }
        }
        Ok(())
    }

    async fn reconnect(&self, stopped: &watch::Receiver<bool>) -> Option<Pen> {
        while !*stopped.borrow() {
            if let Ok(pen) = Pen::connect(&self.url, &self.load.outbox).await {
                return Some(pen);
            }
            sleep(PAUSE).await;
        }
        None
    }
}

impl Books {
    fn enter(&self, end: End) {
        let counter = match end {
            End::Committed { message_ids, at } => {
                self.events.fetch_add(message_ids.len() as u64, Ordering::Relaxed);
                let mut times = self.commit_times.lock().unwrap_or_else(PoisonError::into_inner);
                times.extend(message_ids.into_iter().map(|id| (id, at)));
                &self.transactions
            }
            End::RolledBack => &self.rolled_back,
            End::Deadlock | End::Lost => &self.broken,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn written(&self) -> Written {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Written {
            transactions: read(&self.transactions),
            events: read(&self.events),
            rolled_back: read(&self.rolled_back),
            broken: read(&self.broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, workers) in [(10, 3), (0, 4), (3, 4), (1000, 1)] {
            assert_eq!((0..workers).map(|number| share(total, workers, number)).sum::<u64>(), total);
        }
    }
}
