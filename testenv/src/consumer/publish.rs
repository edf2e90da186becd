//! Publishing by a client that is not the relay's: marks, and deliveries for the judge's own tests.

use std::time::Duration;

use amqprs::callbacks::ChannelCallback;
use amqprs::channel::{BasicPublishArguments, Channel, ConfirmSelectArguments};
use amqprs::{Ack, BasicProperties, Cancel, CloseChannel, FieldTable, Nack, Return};
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::broker::{Broker, within};
use super::delivery::{Properties, Value};

const CONFIRM_LIMIT: Duration = Duration::from_secs(60);

/// What to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parcel {
    /// Its properties.
    pub properties: Properties,
    /// Its headers; [`Value::Other`] cannot be sent.
    pub headers: Vec<(String, Value)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// Publishes to one route, in order, and returns when the broker has confirmed all.
///
/// # Errors
/// Also when it is refused or returned.
pub async fn publish(url: &str, exchange: &str, routing_key: &str, parcels: Vec<Parcel>) -> Result<()> {
    let broker = Broker::open(url).await?;
    let (words, mut heard) = mpsc::unbounded_channel();
    within("register for confirms", broker.channel.register_callback(Ear { words })).await?;
    within("select confirms", broker.channel.confirm_select(ConfirmSelectArguments::new(false))).await?;
    let last = parcels.len() as u64;
    let route = BasicPublishArguments::new(exchange, routing_key).mandatory(true).finish();
    for Parcel { properties, headers, body } in parcels {
        let properties = content_header(properties, headers)?;
        within("publish", broker.channel.basic_publish(properties, body, route.clone())).await?;
    }
    // Single confirms may overtake each other; so they are counted, and a multiple one counts all up to its tag.
    let mut open: std::collections::BTreeSet<u64> = (1..=last).collect();
    while !open.is_empty() {
        let word = timeout(CONFIRM_LIMIT, heard.recv()).await.context("wait for confirms in time")?;
        match word.context("wait for confirms on an open channel")? {
            Word::Confirmed { tag, multiple: true } => open.retain(|open| *open > tag),
            Word::Confirmed { tag, multiple: false } => _ = open.remove(&tag),
            Word::Refused(why) => bail!("publish to exchange {exchange:?} with {routing_key:?}: {why}"),
        }
    }
    broker.close().await
}

fn content_header(sent: Properties, headers: Vec<(String, Value)>) -> Result<BasicProperties> {
    let mut table = FieldTable::new();
    for (name, value) in headers {
        table.insert(name.try_into()?, value.field()?);
    }
    Ok(BasicProperties::new(
        sent.content_type,
        sent.content_encoding,
        Some(table),
        sent.delivery_mode,
        sent.priority,
        sent.correlation_id,
        sent.reply_to,
        sent.expiration,
        sent.message_id,
        sent.timestamp,
        sent.message_type,
        sent.user_id,
        sent.app_id,
        sent.cluster_id,
    ))
}

/// What the broker said of a published message.
enum Word {
    Confirmed { tag: u64, multiple: bool },
    Refused(String),
}

/// Passes on what the broker says; when the channel ends, so does the passage.
struct Ear {
    words: mpsc::UnboundedSender<Word>,
}

#[async_trait]
impl ChannelCallback for Ear {
    async fn close(&mut self, _: &Channel, close: CloseChannel) -> Result<(), amqprs::error::Error> {
        // Nobody listens any more when all is confirmed.
        let _ = self.words.send(Word::Refused(close.to_string()));
        Ok(())
    }

    async fn cancel(&mut self, _: &Channel, _: Cancel) -> Result<(), amqprs::error::Error> {
        Ok(())
    }

    async fn flow(&mut self, _: &Channel, active: bool) -> Result<bool, amqprs::error::Error> {
        Ok(active)
    }

    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        let _ = self.words.send(Word::Confirmed { tag: ack.delivery_tag(), multiple: ack.mutiple() });
    }

    async fn publish_nack(&mut self, _: &Channel, nack: Nack) {
        let _ = self.words.send(Word::Refused(format!("nack of {}", nack.delivery_tag())));
    }

    async fn publish_return(&mut self, _: &Channel, returned: Return, _: BasicProperties, _: Vec<u8>) {
        let _ = self.words.send(Word::Refused(returned.to_string()));
    }
}
