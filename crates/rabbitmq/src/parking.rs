//! A queue in which consumers park what they cannot handle: looked at, sent back, or given up.
//!
//! Invariant: a message is acknowledged only when its copy is confirmed and was not returned, or when it is given
//! up; all others are the queue's again, in their places, when the channel ends.
//!
//! They are taken by a consumer, never by `basic.get`: each of those is a consumer of its own to a quorum queue,
//! which puts the messages back consumer by consumer, in any order of these.

mod message;

use std::fmt;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
    QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Confirmation};
use tokio::time::{Instant, sleep, timeout};

use crate::ending::may_end_one_channel;
use crate::link::{Link, open_lane, within};
use crate::outage::{Outage, OutageKind, server_word, words};
use crate::settings::Settings;

pub use message::ParkedMessage;

/// A queue may be slow to deliver: after so long it is asked whether there is more.
const QUIET: Duration = Duration::from_millis(500);
/// How long to wait for the end of a consumer that the queue has; it may be one that stays.
const RETURN_LIMIT: Duration = Duration::from_secs(1);
/// How long taking leave of the broker may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A parking queue, seen over a connection of its own. What was taken and neither sent back nor discarded stays
/// in the queue when this is closed or dropped, in its place.
pub struct ParkingQueue {
    link: Link,
    queue: ShortString,
    /// Where messages are taken and acknowledged.
    channel: Channel,
    deliveries: lapin::Consumer,
    /// In confirm mode; none until it is needed, and after a refusal.
    sending: Option<Channel>,
    waiting: u32,
    /// How many more are looked at.
    left: u16,
    limit: Duration,
}

/// Where a message is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To this queue and no other, by the default exchange.
    Queue(String),
    /// To every queue that is bound there for the key.
    Exchange {
        /// The exchange's name.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
}

/// Why a parking queue could not be looked at, or a message did not leave it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParkingError {
    /// The broker is away or does not answer: what was not acknowledged stays in the queue.
    #[error(transparent)]
    Outage(#[from] Outage),
    /// The queue cannot be looked into.
    #[error("look into queue {queue:?}: {why}")]
    Queue {
        /// Which.
        queue: String,
        /// The broker's words.
        why: String,
    },
    /// The message was not taken there: it stays parked. Others may be.
    #[error("send it to {way}: {why}")]
    Refused {
        /// Where it was sent.
        way: Way,
        /// The broker's words, or ours.
        why: String,
    },
}

impl ParkingQueue {
    /// Opens the queue to look at its first `limit` messages, at the first endpoint that lets us in.
    pub async fn open(settings: &Settings, queue: &str, limit: u16) -> Result<Self, ParkingError> {
        let link = Box::pin(connect(settings)).await?;
        let refused = |why: String| ParkingError::Queue { queue: queue.to_owned(), why };
        let name =
            ShortString::try_new(queue).map_err(|_| refused("its name has over 255 bytes".to_owned()))?;
        let opening = async {
            let channel = link.connection.create_channel().await?;
            let waiting = count(&channel, &name).await?;
            // No more than there are: what is sent back may be parked again behind them. A quorum queue says 0
            // also if it was not heard in time.
            let there = u16::try_from(waiting).unwrap_or(u16::MAX);
            let left = if there == 0 { limit } else { there.min(limit) };
            channel.basic_qos(left, BasicQosOptions::default()).await?;
            let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
            let deliveries = channel.basic_consume(name.clone(), tag, options, FieldTable::default()).await?;
            Ok((channel, deliveries, waiting, left))
        };
        let opened = timeout(settings.confirm_timeout, opening).await;
        let opened = opened
            .map_err(|_| Outage::silent(&format!("look into queue {queue:?}"), settings.confirm_timeout))?;
        let (channel, deliveries, waiting, left) =
            opened.map_err(|error: lapin::Error| refused(words(&error) + hint(&error)))?;
        Ok(Self {
            link,
            queue: name,
            channel,
            deliveries,
            sending: None,
            waiting,
            left,
            limit: settings.confirm_timeout,
        })
    }

    /// How many messages waited in the queue when it was opened.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// The next message; none behind the last one, and at the limit.
    pub async fn next(&mut self) -> Result<Option<ParkedMessage>, ParkingError> {
        if self.left == 0 {
            return Ok(None);
        }
        let delivery = match timeout(QUIET, self.deliveries.next()).await {
            Ok(delivery) => delivery,
            // An empty answer comes behind all that was sent to us before it.
            Err(_) => match self.get().await? {
                Some(delivery) => Some(Ok(delivery)),
                None => match self.deliveries.next().now_or_never() {
                    Some(delivery) => delivery,
                    None => return Ok(None),
                },
            },
        };
        let Some(delivery) = delivery else {
            let why = "the broker has ended it: the queue was deleted, or its node is away".to_owned();
            return Err(ParkingError::Queue { queue: self.queue.to_string(), why });
        };
        self.left -= 1;
        Ok(Some(ParkedMessage::of(delivery.map_err(|error| lost(&self.link.peer, &error))?)))
    }

    async fn get(&self) -> Result<Option<lapin::message::Delivery>, ParkingError> {
        let asked = self.channel.basic_get(self.queue.clone(), BasicGetOptions::default());
        let step = format!("look into queue {:?}", self.queue.as_str());
        let asked = async { asked.await.map_err(|error| lost(&self.link.peer, &error)) };
        Ok(within(self.limit, &step, asked).await?.map(|got| got.delivery))
    }

    /// Sends a message as it was before it was parked, with its own id; acknowledges the parked copy when the
    /// broker has confirmed the new one and a queue has it. Killed in between, it is there twice.
    ///
    /// # Errors
    /// It stays parked, or it may have been sent and be parked still.
    pub async fn send_back(&mut self, message: &ParkedMessage, way: &Way) -> Result<(), ParkingError> {
        // Put back when all is well: a refusal closes the channel.
        let channel = match self.sending.take() {
            Some(channel) => channel,
            None => self.open_sending().await?,
        };
        let refused = |why: String| ParkingError::Refused { way: way.clone(), why };
        let (exchange, routing_key) = match way {
            Way::Queue(queue) => ("", queue),
            Way::Exchange { exchange, routing_key } => (exchange.as_str(), routing_key),
        };
        let short = |name: &str| {
            ShortString::try_new(name).map_err(|_| refused(format!("{name:?} has over 255 bytes")))
        };
        let (exchange, routing_key) = (short(exchange)?, short(routing_key)?);
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let sending = async {
            let properties = message.own_properties();
            channel.basic_publish(exchange, routing_key, options, message.body(), properties).await?.await
        };
        let said = timeout(self.limit, sending).await;
        match said.map_err(|_| Outage::silent(&format!("send it to {way}"), self.limit))? {
            Ok(Confirmation::Ack(None)) => self.sending = Some(channel),
            Ok(Confirmation::Ack(Some(_))) => return Err(refused("no queue took it".to_owned())),
            Ok(Confirmation::Nack(_)) => return Err(refused("the broker refused it".to_owned())),
            Ok(Confirmation::NotRequested) => unreachable!("the channel is in confirm mode"),
            Err(error) if may_end_one_channel(&error) => {
                return Err(refused(words(&error) + &cure(&error, message)));
            }
            Err(error) => return Err(lost(&self.link.peer, &error).into()),
        }
        self.acknowledge(message).await
    }

    /// Gives a message up: it is gone.
    pub async fn discard(&mut self, message: &ParkedMessage) -> Result<(), ParkingError> {
        self.acknowledge(message).await
    }

    async fn open_sending(&self) -> Result<Channel, Outage> {
        let open = open_lane(self.link.connection.clone());
        let open = async { open.await.map_err(|error| lost(&self.link.peer, &error)) };
        within(self.limit, "open a channel", open).await
    }

    async fn acknowledge(&self, message: &ParkedMessage) -> Result<(), ParkingError> {
        let ack = self.channel.basic_ack(message.tag(), BasicAckOptions::default());
        let ack = async { ack.await.map_err(|error| lost(&self.link.peer, &error)) };
        Ok(within(self.limit, "acknowledge the parked copy", ack).await?)
    }

    /// Hands back what was only looked at.
    ///
    /// # Errors
    /// It is not known whether the broker has heard the last acknowledgements: what it has not stays parked.
    pub async fn close(mut self) -> Result<(), ParkingError> {
        let close = self.channel.close(200, ShortString::default());
        let close = async { close.await.map_err(|error| lost(&self.link.peer, &error)) };
        let closed = within(CLOSE_LIMIT, "hand the parked messages back", close).await;
        self.link.close(CLOSE_LIMIT).await;
        Ok(closed?)
    }
}

fn lost(peer: &str, error: &lapin::Error) -> Outage {
    let mut outage = Outage::lost(peer, error);
    outage.reason += hint(error);
    outage
}

/// How a message goes back that the broker takes from its own user only:
/// <https://www.rabbitmq.com/docs/validated-user-id>.
fn cure(error: &lapin::Error, message: &ParkedMessage) -> String {
    let precondition = server_word(error).filter(|word| word.get_id() == 406);
    match (precondition, message.user_id()) {
        (Some(word), Some(user)) if word.get_message().as_str().contains("user_id") => format!(
            "; log in as {user:?}, or give the user of this login the tag impersonator (`rabbitmqctl set_user_tags` \
             sets all of its tags)"
        ),
        _ => String::new(),
    }
}

/// What probably cannot be parsed: whoever parks may write any bytes into the properties.
fn hint(error: &lapin::Error) -> &'static str {
    match error.kind() {
        lapin::ErrorKind::ParsingError(_) => {
            "; the likely cause is a message of the queue with a property that is not UTF-8, which this client \
             cannot read: it was not changed; take it out with another tool"
        }
        _ => "",
    }
}

/// How many messages wait. What another look has taken is put back a moment after its end.
async fn count(channel: &Channel, queue: &ShortString) -> lapin::Result<u32> {
    let end = Instant::now() + RETURN_LIMIT;
    loop {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await?;
        if declared.consumer_count() == 0 || Instant::now() >= end {
            return Ok(declared.message_count());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn connect(settings: &Settings) -> Result<Link, Outage> {
    let mut last = Outage::new(OutageKind::Unreachable, "connect: no endpoint is given".to_owned());
    for endpoint in &settings.endpoints {
        match Link::connect(endpoint, settings).await {
            Ok(link) => return Ok(link),
            Err(outage) => last = outage,
        }
    }
    Err(last)
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue:?}"),
            Self::Exchange { exchange, routing_key } => {
                write!(f, "exchange {exchange:?} with routing key {routing_key:?}")
            }
        }
    }
}
