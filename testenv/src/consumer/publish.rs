//! Publishing by a client that is not the relay's: marks, and deliveries for the judge's own tests.

use std::time::Duration;

use amqprs::channel::{BasicPublishArguments, ConfirmSelectArguments};
use amqprs::{BasicProperties, FieldTable};
use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

use super::broker::Broker;
use super::delivery::{Properties, Value};
use super::ear::Word;

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
    let mut broker = Broker::open(url).await?;
    broker.ask("select confirms", broker.channel.confirm_select(ConfirmSelectArguments::new(false))).await?;
    let last = parcels.len() as u64;
    let route = BasicPublishArguments::new(exchange, routing_key).mandatory(true).finish();
    for Parcel { properties, headers, body } in parcels {
        let properties = content_header(properties, headers)?;
        broker.ask("publish", broker.channel.basic_publish(properties, body, route.clone())).await?;
    }
    // Single confirms may overtake each other; so they are counted, and a multiple one counts all up to its tag.
    let mut open: std::collections::BTreeSet<u64> = (1..=last).collect();
    while !open.is_empty() {
        let word = timeout(CONFIRM_LIMIT, broker.heard.recv()).await.context("wait for confirms in time")?;
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
