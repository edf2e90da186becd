//! A queue of the test's own: declared, bound, marked, looked into.

use std::time::Duration;

use amqprs::channel::{
    BasicGetArguments, ExchangeDeclareArguments, ExchangeType, QueueBindArguments, QueueDeclareArguments,
    QueueDeleteArguments, QueuePurgeArguments, QueueUnbindArguments,
};
use amqprs::{FieldTable, FieldValue};
use anyhow::{Context as _, Result};
use tokio_postgres::types::PgLsn;

use super::broker::Broker;
use super::delivery::{Delivery, MARK, Properties, Value};
use super::publish::{self, Parcel};
use crate::eventually;

/// Generous: only there so that a test that hangs ends.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What kind of durable queue to declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// A classic queue.
    Classic,
    /// A quorum queue.
    Quorum,
}

/// A durable queue on a broker. The value is only its address: each call connects anew, so that it works
/// after whatever has happened to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    url: String,
    name: String,
}

impl Queue {
    /// Declares a durable queue, with further arguments such as `x-max-length`.
    pub async fn declare(
        url: &str,
        name: &str,
        kind: QueueKind,
        arguments: &[(&str, Value)],
    ) -> Result<Self> {
        let queue = Self { url: url.to_owned(), name: name.to_owned() };
        let mut table = FieldTable::new();
        let kind = match kind {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
        };
        table.insert("x-queue-type".try_into()?, FieldValue::from(kind));
        for (name, value) in arguments {
            table.insert((*name).try_into()?, value.field()?);
        }
        let mut declare = QueueDeclareArguments::durable_client_named(name);
        declare.arguments(table);
        let broker = Broker::open(url).await?;
        broker.ask("declare the queue", broker.channel.queue_declare(declare)).await?;
        broker.close().await?;
        Ok(queue)
    }

    /// The usual beginning: declares the queue, the durable topic exchange as the relay declares it, and binds
    /// the one to every routing key of the other.
    pub async fn bound(url: &str, name: &str, kind: QueueKind, exchange: &str) -> Result<Self> {
        let queue = Self::declare(url, name, kind, &[]).await?;
        queue.bind(exchange, "#").await?;
        Ok(queue)
    }

    /// Declares the durable topic exchange and binds the queue to it.
    pub async fn bind(&self, exchange: &str, routing_key: &str) -> Result<()> {
        let declare = ExchangeDeclareArguments::of_type(exchange, ExchangeType::Topic).durable(true).finish();
        let bind = QueueBindArguments::new(&self.name, exchange, routing_key);
        let broker = Broker::open(&self.url).await?;
        broker.ask("declare the exchange", broker.channel.exchange_declare(declare)).await?;
        broker.ask("bind the queue", broker.channel.queue_bind(bind)).await?;
        broker.close().await
    }

    /// Takes the queue off the exchange, for this routing key.
    pub async fn unbind(&self, exchange: &str, routing_key: &str) -> Result<()> {
        let unbind = QueueUnbindArguments::new(&self.name, exchange, routing_key);
        let broker = Broker::open(&self.url).await?;
        broker.ask("unbind the queue", broker.channel.queue_unbind(unbind)).await?;
        broker.close().await
    }

    /// The broker's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes where the slot stood into the queue, behind everything that was published before; the oracle reads it
    /// there. Read the slot first, then mark, then do the harm (after a crash: once the slot is free again).
    pub async fn mark(&self, persisted: PgLsn) -> Result<()> {
        let parcel = Parcel {
            properties: Properties { delivery_mode: Some(2), ..Properties::default() },
            headers: vec![(MARK.to_owned(), Value::Text(persisted.to_string()))],
            body: Vec::new(),
        };
        publish::publish(&self.url, "", &self.name, vec![parcel]).await.context("mark the queue")
    }

    /// How many messages wait in it.
    pub async fn depth(&self) -> Result<u32> {
        let (depth, _) = self.look().await?;
        Ok(depth)
    }

    /// The same, once nobody consumes: what a consumer had at work when it went is put back a moment later.
    pub async fn left(&self) -> Result<u32> {
        eventually("the consumers to be gone", ANSWER_LIMIT, async || {
            let (depth, consumers) = self.look().await?;
            Ok((consumers == 0).then_some(depth))
        })
        .await
    }

    /// Messages that are ready, and consumers.
    async fn look(&self) -> Result<(u32, u32)> {
        eventually("an answer of the queue", ANSWER_LIMIT, async || {
            let passive = QueueDeclareArguments::durable_client_named(&self.name).passive(true).finish();
            let broker = Broker::open(&self.url).await?;
            let answer = broker.ask("look at the queue", broker.channel.queue_declare(passive)).await?;
            let (_, depth, consumers) = answer.context("read the queue's depth")?;
            // A quorum queue's zeros may only mean that its leader was not heard within 250 ms
            // (`rabbit_quorum_queue:stat/2`). A get has no such limit; what it finds goes back with the channel.
            let get = BasicGetArguments::new(&self.name).finish();
            let sure = (depth, consumers) != (0, 0)
                || broker.ask("look for a message", broker.channel.basic_get(get)).await?.is_none();
            broker.close().await?;
            Ok(sure.then_some((depth, consumers)))
        })
        .await
    }

    /// Takes one message out, if there is one: for looking at every property.
    pub async fn take(&self) -> Result<Option<Delivery>> {
        let get = BasicGetArguments::new(&self.name).no_ack(true).finish();
        let broker = Broker::open(&self.url).await?;
        let answer = broker.ask("take a message", broker.channel.basic_get(get)).await?;
        broker.close().await?;
        Ok(answer.map(|(got, properties, body)| {
            let route = (got.exchange().clone(), got.routing_key().clone(), got.redelivered());
            Delivery::new(route, 0, &properties, body)
        }))
    }

    /// Waits until there is a message, and takes it out.
    pub async fn wait_take(&self, limit: Duration) -> Result<Delivery> {
        eventually("a message", limit, async || self.take().await).await
    }

    /// Removes all that waits in it.
    pub async fn purge(&self) -> Result<()> {
        let broker = Broker::open(&self.url).await?;
        broker
            .ask("purge the queue", broker.channel.queue_purge(QueuePurgeArguments::new(&self.name)))
            .await?;
        broker.close().await
    }

    /// Removes it.
    pub async fn delete(&self) -> Result<()> {
        let broker = Broker::open(&self.url).await?;
        broker
            .ask("delete the queue", broker.channel.queue_delete(QueueDeleteArguments::new(&self.name)))
            .await?;
        broker.close().await
    }
}
