//! One connection to the broker: deliveries in, acknowledgements out.
//!
//! Invariant: what a session has not acknowledged is delivered again; so when it is lost, everything in it is
//! dropped, transactions included.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::{BoxError, Connect, Database, words};
use super::event::Event;
use super::handle::Handle;
use super::lanes::{Item, Key, Lanes};
use super::parking::Lot;
use super::work::{Outcome, Place};
use super::{PEER_LIMIT, Shared};

/// Why a session ended.
pub(super) enum End {
    /// It was told to.
    Stopped,
    /// What waited for too long is given back to the queue, where only the end of the connection leaves
    /// everything in its place: a quorum queue puts at its tail what is refused, or left by a cancelled
    /// consumer.
    Renewed,
    Lost(String),
}

/// A session that takes no more, and waits for what is at work: as long as [`Settings::drain_limit`] says if
/// somebody waits for it, else for as long as work may take, so that what takes long is done at all.
///
/// [`Settings::drain_limit`]: super::Settings::drain_limit
struct Leaving {
    end: End,
    until: Instant,
}

/// What a task of the session brings back.
enum Done {
    Worked { key: Key, item: Box<Item>, outcome: Outcome, database: Option<Database> },
    Asked { key: Key, items: Vec<Item> },
}

pub(super) struct Session<C, H> {
    shared: Arc<Shared<C, H>>,
    connection: Arc<Connection>,
    events: BoxStream<'static, lapin::Event>,
    channel: Channel,
    deliveries: lapin::Consumer,
    lot: Arc<Lot>,
    lanes: Lanes,
    idle: Vec<Database>,
    tasks: JoinSet<Done>,
    useful: bool,
}

impl<C: Connect, H: Handle> Session<C, H> {
    pub(super) async fn open(shared: Arc<Shared<C, H>>) -> Result<Self, String> {
        let opening = async {
            // Before anything is delivered: a quorum queue counts deliveries, and drops a message that has had too
            // many. An outage of the database shall not use them up.
            let mut database = shared.database().await?;
            shared.inbox.look(&mut database.client).await?;
            let connection = Arc::new(shared.connect.broker().await?);
            let events = connection.events_listener().boxed();
            let channel = connection.create_channel().await?;
            channel.basic_qos(shared.settings.prefetch, BasicQosOptions::default()).await?;
            let queue = ShortString::try_new(shared.settings.queue.as_str())?;
            let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
            let deliveries = channel.basic_consume(queue, tag, options, FieldTable::default()).await?;
            Ok::<_, BoxError>(Self {
                shared: Arc::clone(&shared),
                connection,
                events,
                channel,
                deliveries,
                lot: Arc::new(Lot::new()),
                lanes: Lanes::default(),
                idle: vec![database],
                tasks: JoinSet::new(),
                useful: false,
            })
        };
        match timeout(PEER_LIMIT, opening).await {
            Ok(opened) => opened.map_err(|error| format!("open the session: {}", words(&*error))),
            Err(_) => Err(format!("open the session: no answer within {PEER_LIMIT:?}")),
        }
    }

    /// Whether anything was acknowledged.
    pub(super) fn was_useful(&self) -> bool {
        self.useful
    }

    pub(super) async fn run(&mut self, mut stop: Pin<&mut impl Future<Output = ()>>) -> End {
        self.shared.tally.connected(true);
        let mut leaving: Option<Leaving> = None;
        loop {
            let lost = match &mut leaving {
                None => {
                    self.begin();
                    self.step(stop.as_mut(), &mut leaving).await.err()
                }
                Some(_) if self.tasks.is_empty() => return leaving.map_or(End::Stopped, |left| left.end),
                Some(left) => self.drain(stop.as_mut(), left).await.err(),
            };
            self.shared.tally.at_work(self.tasks.len());
            match (lost, &leaving) {
                (None, _) => {}
                // Who stops does not come back.
                (Some(_), Some(Leaving { end: End::Stopped, .. })) => return End::Stopped,
                (Some(outage), _) => return End::Lost(words(&*outage)),
            }
        }
    }

    async fn step(
        &mut self,
        stop: Pin<&mut impl Future<Output = ()>>,
        leaving: &mut Option<Leaving>,
    ) -> Result<(), BoxError> {
        let settings = &self.shared.settings;
        let deadline = self.lanes.deadline(settings.early_wait);
        let overdue = self.lanes.oldest().map(|since| since + settings.hold_limit);
        let far = Instant::now() + PEER_LIMIT;
        // With all workers at work, what is due waits for one of them.
        let free = self.tasks.len() < settings.workers;
        select! {
            biased;
            () = stop => *leaving = Some(self.stopped()),
            // Before deliveries: what is done makes room.
            Some(done) = self.tasks.join_next() => self.settle(done?).await?,
            event = self.events.next() => hear(event)?,
            () = sleep_until(overdue.unwrap_or(far)), if overdue.is_some() => {
                let until = Instant::now() + settings.handle_limit + PEER_LIMIT;
                *leaving = Some(Leaving { end: End::Renewed, until });
            }
            delivery = self.deliveries.next() => {
                let delivery = delivery.ok_or("the broker has cancelled the consumer")??;
                let (tag, now) = (delivery.delivery_tag, Instant::now());
                self.lanes.push(Item {
                    tag,
                    event: Arc::new(Event::of(delivery)),
                    since: now,
                    not_before: now,
                    early_since: None,
                    parking: None,
                    outages: 0,
                });
            }
            // Something can begin.
            () = sleep_until(deadline.unwrap_or(far)), if free => {}
        }
        Ok(())
    }

    fn stopped(&self) -> Leaving {
        Leaving { end: End::Stopped, until: Instant::now() + self.shared.settings.drain_limit }
    }

    /// Waits for what is at work; no longer than that.
    async fn drain(
        &mut self,
        stop: Pin<&mut impl Future<Output = ()>>,
        leaving: &mut Leaving,
    ) -> Result<(), BoxError> {
        select! {
            biased;
            () = stop, if !matches!(leaving.end, End::Stopped) => *leaving = self.stopped(),
            Some(done) = self.tasks.join_next() => match done {
                // By us, below: the session ends as it was to.
                Err(ended) if ended.is_cancelled() => {}
                done => self.settle(done?).await?,
            },
            event = self.events.next() => hear(event)?,
            () = sleep_until(leaving.until) => self.tasks.abort_all(),
        }
        Ok(())
    }

    /// Takes leave of the broker, which may not listen (an alarm blocks whoever has parked).
    pub(super) async fn close(&mut self, limit: Duration) {
        // Whatever it answers, the connection is dropped next.
        let _ = timeout(limit, self.connection.close(200, ShortString::default())).await;
    }

    /// Puts free workers to work.
    fn begin(&mut self) {
        let now = Instant::now();
        while self.tasks.len() < self.shared.settings.workers {
            let place = Place {
                shared: Arc::clone(&self.shared),
                connection: Arc::clone(&self.connection),
                lot: Arc::clone(&self.lot),
            };
            if let Some((key, items)) = self.lanes.next_gap(now, self.shared.settings.early_wait) {
                self.tasks.spawn(async move { Done::Asked { key, items: place.close_gap(items).await } });
            } else if let Some((key, item)) = self.lanes.next(now) {
                let database = self.idle.pop();
                self.tasks.spawn(async move {
                    let (item, outcome, database) = place.work(item, database).await;
                    Done::Worked { key, item: Box::new(item), outcome, database }
                });
            } else {
                return;
            }
        }
    }

    async fn settle(&mut self, done: Done) -> Result<(), BoxError> {
        let now = Instant::now();
        match done {
            Done::Asked { key, items } => self.lanes.give_back(&key, items),
            Done::Worked { key, item, outcome, database } => {
                self.idle.extend(database);
                match outcome {
                    Outcome::Settled => {
                        self.lanes.settled(&key, now);
                        let ack = self.channel.basic_ack(item.tag, BasicAckOptions::default());
                        timeout(PEER_LIMIT, ack).await??;
                        self.useful = true;
                    }
                    Outcome::Again => self.lanes.give_back(&key, vec![*item]),
                    Outcome::Early => {
                        if let Some(other) = self.lanes.hold(&key, *item, now) {
                            // Two with one number: the other one has its turn by itself.
                            self.lanes.give_back(&key, vec![other]);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl<C, H> Drop for Session<C, H> {
    fn drop(&mut self) {
        // Its tasks end with it.
        self.shared.tally.at_work(0);
        self.shared.tally.connected(false);
    }
}

/// What lapin tells of the connection.
fn hear(event: Option<lapin::Event>) -> Result<(), BoxError> {
    match event {
        // A refusal of the parking channel is told to whoever parks.
        Some(lapin::Event::Error(error)) if error.is_amqp_soft_error() => Ok(()),
        Some(lapin::Event::Error(error)) => Err(error.into()),
        Some(_) => Ok(()),
        None => Err("the connection was closed".into()),
    }
}
