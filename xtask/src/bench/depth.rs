//! The queue's own count of what it holds: the one clock for every leg that publishes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// A leg that adds nothing for so long is broken.
const STALL: Duration = Duration::from_secs(30);

/// A connection that asks how deep a queue is.
pub(super) struct Depth {
    _connection: Connection,
    channel: Channel,
    queue: String,
}

impl Depth {
    pub(super) async fn open(url: &str, queue: &str) -> Result<Self> {
        let open = async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            Ok::<_, lapin::Error>(Self { _connection: connection, channel, queue: queue.to_owned() })
        };
        timeout(LIMIT, open).await.context("connect to the broker in time")?.context("connect to the broker")
    }

    /// How many messages the queue holds.
    pub(super) async fn count(&self) -> Result<u32> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
        let look = self.channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        let queue = timeout(LIMIT, look).await.context("look at the queue in time")?;
        Ok(queue.context("look at the queue")?.message_count())
    }

    /// Waits until the queue holds so many, and says how many came in a second, from the first look that saw any.
    pub(super) async fn fill(&self, events: u32) -> Result<f64> {
        let (mut first, mut last) = (None, (Instant::now(), 0));
        while last.1 < events {
            sleep(PAUSE).await;
            let seen = (Instant::now(), self.count().await?);
            if seen.1 > last.1 {
                last = seen;
                first.get_or_insert(seen);
            }
            let (count, waited) = (last.1, last.0.elapsed());
            ensure!(waited < STALL, "fill the queue: {count} of {events}, and no more for {waited:?}");
        }
        let (began, early) = first.context("fill the queue: it was not empty")?;
        let (ended, all) = last;
        ensure!(all == events, "fill the queue: {all} messages of {events} events");
        ensure!(all > early, "measure {events} events: they were all there at the first look");
        Ok(f64::from(all - early) / ended.duration_since(began).as_secs_f64())
    }
}
