//! A consumer that records every delivery in the order of arrival; its client is not the relay's.
//!
//! Which way of reading is exact? A message is recorded once for each time the broker hands it out. So a consumer
//! that runs while the *relay* dies or Postgres fails is exact: its own connection lives. While the *broker* or the
//! consumer's link fails, unacknowledged messages are handed out again, marked `redelivered`; the oracle leaves
//! those out, but it then cannot tell a copy of the relay's that was first handed out over the lost connection. So
//! where the broker fails, start the consumer after the fault ([`drain`]): the durable queue keeps every copy once
//! and in order, and nothing is guessed.

mod broker;
mod delivery;
mod ear;
mod publish;
mod queue;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amqprs::channel::{
    BasicAckArguments, BasicConsumeArguments, BasicQosArguments, Channel, ConsumerMessage,
};
use anyhow::{Context as _, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::oracle::Truth;
use broker::{Broker, within};

pub use delivery::{Delivery, Position, Properties, Value};
pub use publish::{Parcel, publish};
pub use queue::{Queue, QueueKind};

/// How many deliveries the broker sends ahead of our acknowledgements.
const PREFETCH: u16 = 2000;
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Between two tries to reach a broker that is away.
const PAUSE: Duration = Duration::from_millis(100);
/// How long nothing may arrive before a queue counts as read to its end.
const QUIET: Duration = Duration::from_millis(500);

/// A running consumer; dropping it ends it.
#[derive(Debug)]
pub struct Consumer {
    record: Arc<Record>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

/// What has arrived, shared between the task that writes and those who look.
#[derive(Debug)]
struct Record {
    arrived: Mutex<Arrived>,
    /// How many deliveries there are; it is sent after they are written down.
    count: watch::Sender<usize>,
    /// How often a session of consuming has begun.
    sessions: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Arrived {
    deliveries: Vec<Delivery>,
    message_ids: HashSet<String>,
    failure: Option<String>,
}

impl Consumer {
    /// Starts consuming and waits until the broker agrees. From then on it comes back after every loss.
    pub async fn start(queue: &Queue) -> Result<Self> {
        let record = Arc::new(Record {
            arrived: Mutex::default(),
            count: watch::Sender::new(0),
            sessions: watch::Sender::new(0),
        });
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(consume(queue.clone(), Arc::clone(&record), stopped));
        let consumer = Self { record, stop, task };
        let mut sessions = consumer.record.sessions.subscribe();
        let begun = timeout_at(Instant::now() + START_LIMIT, sessions.wait_for(|count| *count > 0)).await;
        match begun {
            Ok(begun) => _ = begun.context("start the consumer")?,
            Err(_) => bail!("start the consumer: {}", consumer.failure()),
        }
        Ok(consumer)
    }

    /// How many deliveries have arrived, marks and copies too.
    pub fn count(&self) -> usize {
        self.record.lock().deliveries.len()
    }

    /// How many different message ids have arrived.
    pub fn distinct(&self) -> usize {
        self.record.lock().message_ids.len()
    }

    /// What has arrived so far.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.since(0)
    }

    /// What has arrived after the first `seen` deliveries.
    pub fn since(&self, seen: usize) -> Vec<Delivery> {
        self.record.lock().deliveries.get(seen..).unwrap_or_default().to_vec()
    }

    /// Waits until so many different message ids have arrived.
    pub async fn wait_distinct(&self, count: usize, limit: Duration) -> Result<()> {
        self.wait(&format!("{count} different messages"), limit, |arrived| arrived.message_ids.len() >= count)
            .await
    }

    /// Waits until `enough` likes what has arrived; it looks again after each arrival.
    pub async fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        enough: impl Fn(&[Delivery]) -> bool,
    ) -> Result<()> {
        self.wait(what, limit, |arrived| enough(&arrived.deliveries)).await
    }

    /// Waits until every committed event has arrived, but for what stands in quarantine.
    pub async fn wait_all(&self, truth: &Truth, limit: Duration) -> Result<()> {
        let missing = |arrived: &Arrived| {
            truth.awaited().filter(|event| !arrived.message_ids.contains(&event.id)).count()
        };
        let awaited = truth.awaited().count();
        let all = |arrived: &Arrived| arrived.message_ids.len() >= awaited && missing(arrived) == 0;
        let waited = self.wait("every committed event", limit, all).await;
        waited.with_context(|| format!("{} of {awaited} are missing", missing(&self.record.lock())))
    }

    /// Waits until nothing has arrived for `quiet`.
    pub async fn wait_quiet(&self, quiet: Duration, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let mut count = self.record.count.subscribe();
        while Instant::now() < end {
            count.mark_unchanged();
            match timeout_at(Instant::now() + quiet, count.changed()).await {
                Ok(changed) => changed.context("wait for the consumer to be quiet")?,
                Err(_) => return Ok(()),
            }
        }
        bail!("wait for the consumer to be quiet: still arriving after {limit:?}");
    }

    /// Acknowledges all and ends; returns everything that has arrived.
    pub async fn stop(mut self) -> Result<Vec<Delivery>> {
        self.stop.send_replace(true);
        let ended = timeout_at(Instant::now() + STOP_LIMIT, self.task.join_next()).await;
        if let Some(ended) = ended.context("stop the consumer in time")? {
            ended.context("stop the consumer")?;
        }
        Ok(std::mem::take(&mut self.record.lock().deliveries))
    }

    /// The usual end: waits until every committed event has arrived and then nothing more, and stops.
    ///
    /// What is still missing after `limit` is left to the oracle, which names it.
    pub async fn finish(self, truth: &Truth, limit: Duration) -> Result<Vec<Delivery>> {
        // The oracle says it better.
        let _ = self.wait_all(truth, limit).await;
        self.wait_quiet(QUIET, limit).await?;
        self.stop().await
    }

    async fn wait(&self, what: &str, limit: Duration, enough: impl Fn(&Arrived) -> bool) -> Result<()> {
        let end = Instant::now() + limit;
        let mut count = self.record.count.subscribe();
        loop {
            count.mark_unchanged();
            if enough(&self.record.lock()) {
                return Ok(());
            }
            if timeout_at(end, count.changed()).await.is_err() {
                let arrived = self.count();
                bail!("wait for {what}: {arrived} deliveries within {limit:?}; {}", self.failure());
            }
        }
    }

    fn failure(&self) -> String {
        self.record.lock().failure.clone().unwrap_or_else(|| "the consumer's connection is sound".to_owned())
    }
}

/// Reads a queue to its end: what a consumer finds that was not there during the fault.
pub async fn drain(queue: &Queue) -> Result<Vec<Delivery>> {
    let consumer = Consumer::start(queue).await?;
    consumer.wait_quiet(QUIET, Duration::from_secs(600)).await?;
    let mut deliveries = consumer.stop().await?;
    // A pause in the deliveries is not the end of the queue; an empty answer is.
    while let Some(delivery) = queue.take().await? {
        deliveries.push(delivery);
    }
    Ok(deliveries)
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, delivery: Delivery) {
        let mut arrived = self.lock();
        if delivery.mark().is_none() && !arrived.message_ids.contains(delivery.message_id()) {
            arrived.message_ids.insert(delivery.message_id().to_owned());
        }
        arrived.deliveries.push(delivery);
    }
}

/// Consumes until told to stop, over as many connections as it takes.
async fn consume(queue: Queue, record: Arc<Record>, mut stopped: watch::Receiver<bool>) {
    while !*stopped.borrow_and_update() {
        let failure = match session(&queue, &record, &mut stopped).await {
            Ok(()) => "the broker has ended the connection".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        record.lock().failure = Some(failure);
        if !*stopped.borrow() {
            sleep(PAUSE).await;
        }
    }
}

/// Consumes over one connection until it is lost or we are told to stop.
async fn session(queue: &Queue, record: &Record, stopped: &mut watch::Receiver<bool>) -> Result<()> {
    let broker = Broker::open(queue.url()).await?;
    let channel = &broker.channel;
    within("limit the prefetch", channel.basic_qos(BasicQosArguments::new(0, PREFETCH, false))).await?;
    let arguments = BasicConsumeArguments::new(queue.name(), "testenv").manual_ack(true).finish();
    let (_, mut messages) = within("consume", channel.basic_consume_rx(arguments)).await?;
    let session = *record.sessions.borrow();
    record.sessions.send_modify(|count| *count += 1);
    record.lock().failure = None;
    loop {
        let message = tokio::select! {
            biased;
            // Before the messages: a queue that never runs dry must not keep us.
            _ = stopped.changed() => break,
            message = messages.recv() => message,
        };
        let Some(message) = message else { return Ok(()) };
        receive(message, &mut messages, channel, session, record).await?;
    }
    broker.close().await
}

/// Writes down a message and all that have come with it, then acknowledges them together.
async fn receive(
    first: ConsumerMessage,
    more: &mut mpsc::UnboundedReceiver<ConsumerMessage>,
    channel: &Channel,
    session: u32,
    record: &Record,
) -> Result<()> {
    let mut last_tag = 0;
    let mut next = Some(first);
    while let Some(message) = next {
        let (Some(deliver), Some(properties)) = (message.deliver, message.basic_properties) else {
            bail!("read a delivery: it is not complete");
        };
        last_tag = deliver.delivery_tag();
        let route = (deliver.exchange().clone(), deliver.routing_key().clone(), deliver.redelivered());
        record.write(Delivery::new(route, session, &properties, message.content.unwrap_or_default()));
        next = more.try_recv().ok();
    }
    within("acknowledge", channel.basic_ack(BasicAckArguments::new(last_tag, true))).await?;
    let count = record.lock().deliveries.len();
    record.count.send_replace(count);
    Ok(())
}
