//! What the tests share: windows to publish, an exchange with queues to publish to, and limits on waiting.

#![expect(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use postrider_rabbitmq::{Backoff, Endpoint, Event, Outage, Publisher, Settings, State};
use postrider_relay::{Answer, BrokerLimits, Lsn, Message, Position, Window, WindowId};
use tokio::time::timeout;

/// Far more than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn settings(url: &str, exchange: &str) -> Result<Settings> {
    let mut settings = Settings::new(vec![Endpoint::parse(url)?]);
    exchange.clone_into(&mut settings.exchange);
    settings.backoff =
        Backoff { first: Duration::from_millis(50), max: Duration::from_millis(500), ..Backoff::default() };
    Ok(settings)
}

/// The next event, in time.
pub(crate) async fn next(publisher: &mut Publisher) -> Result<Event> {
    timeout(LIMIT, publisher.next()).await.context("hear from the publisher in time")
}

pub(crate) async fn ready(publisher: &mut Publisher) -> Result<BrokerLimits> {
    match next(publisher).await? {
        Event::State(State::Ready(limits)) => Ok(limits),
        other => bail!("expected ready, got {other:?}"),
    }
}

pub(crate) async fn down(publisher: &mut Publisher) -> Result<Outage> {
    match next(publisher).await? {
        Event::State(State::Down(outage)) => Ok(outage),
        other => bail!("expected an outage, got {other:?}"),
    }
}

pub(crate) async fn answer(publisher: &mut Publisher) -> Result<Answer> {
    match next(publisher).await? {
        Event::Answer(answer) => Ok(answer),
        Event::State(state) => bail!("expected an answer, got {state:?}"),
    }
}

/// A message whose position is `number`'s, for `exchange` and `routing_key`.
pub(crate) fn message(number: u32, exchange: &str, routing_key: &str) -> Message {
    Message {
        position: Position { commit_lsn: Lsn(0x1_0000_0000 + u64::from(number / 7)), index: number % 7 },
        exchange: exchange.into(),
        routing_key: routing_key.into(),
        message_id: number.to_string().into(),
        event_type: "placed".into(),
        correlation_id: None,
        content_type: "application/json".into(),
        timestamp_s: Some(1_700_000_000),
        headers: Vec::new(),
        body: Bytes::from(format!("{{\"number\":{number}}}")),
    }
}

pub(crate) fn window(id: u64, messages: impl IntoIterator<Item = Message>) -> Window {
    Window { id: WindowId(id), messages: messages.into_iter().map(Arc::new).collect() }
}

/// A connection of the test's own, to make queues and to look into them.
pub(crate) struct Desk {
    pub(crate) connection: Connection,
    pub(crate) channel: Channel,
}

impl Desk {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let connection = timeout(LIMIT, Connection::connect(url, ConnectionProperties::default()))
            .await
            .context("connect in time")??;
        let channel = connection.create_channel().await?;
        Ok(Self { connection, channel })
    }

    pub(crate) async fn exchange(&self, name: &str) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        self.channel
            .exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default())
            .await?;
        Ok(())
    }

    /// A durable queue for all routing keys that begin with its name and a dot.
    pub(crate) async fn queue(
        &self,
        exchange: &str,
        name: &str,
        arguments: &[(&str, AMQPValue)],
    ) -> Result<()> {
        let mut table = FieldTable::default();
        for (key, value) in arguments {
            table.insert((*key).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), options, table).await?;
        self.bind(exchange, name).await
    }

    /// A queue of this connection's own, in memory: it confirms at once.
    pub(crate) async fn swift_queue(&self, exchange: &str, name: &str) -> Result<()> {
        let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
        self.channel.queue_declare(name.into(), options, FieldTable::default()).await?;
        self.bind(exchange, name).await
    }

    async fn bind(&self, exchange: &str, queue: &str) -> Result<()> {
        let (key, options) = (format!("{queue}.#"), QueueBindOptions::default());
        self.channel
            .queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default())
            .await?;
        Ok(())
    }

    /// The message ids in a queue, in its order; the queue is empty after that.
    pub(crate) async fn take_all(&self, queue: &str) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = self.channel.basic_get(queue.into(), options).await? {
            let id = message.properties.message_id().clone().context("a message has an id")?;
            ids.push(id.to_string());
        }
        Ok(ids)
    }
}

pub(crate) fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}
