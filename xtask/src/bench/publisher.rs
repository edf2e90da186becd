//! The bare publisher: what lapin can do when nothing else happens, in a process of its own.
//!
//! It has none of the relay's code and the relay's shape: lanes, each with a window out, each awaited whole before
//! the next. It publishes what stands in the outbox table, read before it is told to go.

mod child;
mod message;

use std::future::poll_fn;
use std::io::{Read as _, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind, PublisherConfirm};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::quantile::Latency;
use super::rig::EXCHANGE;
use super::steady::{Steady, WARM_UP};
pub(super) use child::Child;
use message::Message;

const LANES: usize = 8;
const WINDOW: usize = 128;
const LIMIT: Duration = Duration::from_secs(1800);
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);

/// Where to read and where to publish.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    postgres: String,
    #[arg(long)]
    rabbitmq: String,
    /// Events in a second; without it, as many as the broker takes
    #[arg(long, requires = "seconds")]
    rate: Option<u32>,
    /// For how long, after a warm-up
    #[arg(long)]
    seconds: Option<u32>,
}

/// Reads the events, says so, waits for a line, publishes, and lives until nobody listens any more.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let messages = message::read(&arguments.postgres).await?;
    let open = open(&arguments.rabbitmq);
    let (_connection, lanes) = timeout(CONFIRM_LIMIT, open).await.context("open the lanes in time")??;
    println!("ready");
    stdin().read_line(&mut String::new()).context("wait for the word to go")?;
    let work = async {
        match arguments.rate.zip(arguments.seconds) {
            None => drain(lanes, messages).await.map(|()| "done".to_owned()),
            Some((rate, seconds)) => {
                steady(lanes, messages, Steady { rate, seconds }).await.map(Latency::to_line)
            }
        }
    };
    println!("{}", timeout(LIMIT, work).await.context("publish in time")??);
    stdin().read_to_end(&mut Vec::new()).context("wait for the end").map(drop)
}

async fn open(url: &str) -> Result<(Connection, Vec<Channel>)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.context("connect")?;
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let lane = connection.create_channel().await.context("open a channel")?;
        lane.confirm_select(ConfirmSelectOptions::default()).await.context("ask for confirms")?;
        lanes.push(lane);
    }
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declare =
        lanes[0].exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, FieldTable::default());
    declare.await.context("declare the exchange")?;
    Ok((connection, lanes))
}

/// Publishes all, as fast as it can.
async fn drain(lanes: Vec<Channel>, messages: Vec<Message>) -> Result<()> {
    let messages = Arc::new(messages);
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for lane in lanes {
        let (messages, next) = (Arc::clone(&messages), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let at = next.fetch_add(WINDOW, Ordering::Relaxed);
                let Some(rest) = messages.get(at..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
                window(&lane, &rest[..WINDOW.min(rest.len())]).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("run a lane")?.context("publish")?;
    }
    Ok(())
}

/// Publishes a window, and waits for all its confirms.
async fn window(lane: &Channel, messages: &[Message]) -> Result<()> {
    let mut publishing = Vec::with_capacity(messages.len());
    for message in messages {
        let mut publish = Box::pin(publish(lane, message));
        // The first poll puts the message in its place; waiting for each to be written would cost a thread's turn.
        let begun = poll_fn(|cx| Poll::Ready(publish.as_mut().poll(cx))).await;
        publishing.push((publish, begun));
    }
    let mut confirms = Vec::with_capacity(messages.len());
    for (publish, begun) in publishing {
        confirms.push(match begun {
            Poll::Ready(confirm) => confirm?,
            Poll::Pending => publish.await?,
        });
    }
    for confirm in confirms {
        accepted(&confirm.await?)?;
    }
    Ok(())
}

/// Publishes at a steady rate, each message when it is due, and says how long the confirms took.
async fn steady(lanes: Vec<Channel>, mut messages: Vec<Message>, plan: Steady) -> Result<Latency> {
    messages.truncate(plan.events() as usize);
    let began = Instant::now();
    let mut beat = interval(Duration::from_secs(1) / plan.rate);
    let mut tasks = JoinSet::new();
    let mut all = Vec::new();
    for (message, lane) in messages.into_iter().zip(lanes.iter().cycle()) {
        beat.tick().await;
        let sent = Instant::now();
        let confirm = publish(lane, &message).await?;
        tasks.spawn(async move {
            accepted(&confirm.await?)?;
            Ok::<_, anyhow::Error>((sent, sent.elapsed()))
        });
        while let Some(ended) = tasks.try_join_next() {
            all.push(ended.context("await a confirm")??);
        }
    }
    while let Some(ended) = tasks.join_next().await {
        all.push(ended.context("await a confirm")??);
    }
    let counted = all.iter().filter(|(sent, _)| sent.duration_since(began) >= WARM_UP);
    Latency::of(counted.map(|(_, took)| *took).collect())
}

async fn publish(lane: &Channel, message: &Message) -> lapin::Result<PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let properties = message.properties();
    lane.basic_publish(EXCHANGE.into(), message.routing_key().into(), options, &message.body, properties)
        .await
}

fn accepted(confirmation: &Confirmation) -> Result<()> {
    ensure!(matches!(confirmation, Confirmation::Ack(None)), "have a message confirmed: {confirmation:?}");
    Ok(())
}
