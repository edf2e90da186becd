//! `postrider parked`: what consumers have parked is listed, shown, sent back or given up.
//!
//! A look takes messages and hands them back, each in its place: the queue loses nothing when this is killed.

mod back;
mod page;

use std::process::ExitCode;

use anyhow::{Context, bail};
use postrider_rabbitmq::{ParkedMessage, ParkingQueue};

use super::NOT_ASKED;
use super::table::{self, JsonArray};
use crate::cli::{Parked, Pick, Which};
use crate::config::Config;
use crate::peers;
use back::{Became, Desk, Report, Road};
use page::Summary;

/// Does what the command says.
pub(crate) async fn parked(config: &Config, command: &Parked) -> anyhow::Result<ExitCode> {
    match command {
        Parked::List { which, output } => list(Shelf::open(config, which).await?, output.json).await,
        Parked::Show { payload, which, output } => {
            show(Shelf::open(config, which).await?, *payload, output.json).await
        }
        Parked::Retry { consumer, to_queue, by_exchange, pick } => {
            let which = pick.which("retry")?;
            let desk = Desk::open(config, consumer.as_deref()).await?;
            let road = Road { to_queue: to_queue.as_deref(), by_exchange: *by_exchange };
            retry(Shelf::open(config, which).await?, &desk, &road, pick).await
        }
        Parked::Discard { yes, unmarked, pick } => {
            let shelf = Shelf::open(config, pick.which("discard")?).await?;
            if *yes { discard(shelf, *unmarked, pick).await } else { warn(shelf, *unmarked, pick).await }
        }
    }
}

/// So many times a quorum queue has handed a message out when it is worth a word.
const DELIVERIES_MANY: i64 = 10;

/// The parking queue, and which of its messages are meant.
struct Shelf<'a> {
    queue: ParkingQueue,
    which: &'a Which,
    looked: u32,
    found: u32,
    deliveries: i64,
}

impl<'a> Shelf<'a> {
    async fn open(config: &Config, which: &'a Which) -> anyhow::Result<Self> {
        let settings = postrider_rabbitmq::Settings {
            connection_name: "postrider parked".to_owned(),
            ..peers::publisher(config)?
        };
        let queue = Box::pin(ParkingQueue::open(&settings, &which.queue, which.limit)).await?;
        Ok(Self { queue, which, looked: 0, found: 0, deliveries: 0 })
    }

    /// The next message that is meant.
    async fn next(&mut self) -> anyhow::Result<Option<ParkedMessage>> {
        while let Some(message) = self.queue.next().await? {
            self.looked += 1;
            self.deliveries = self.deliveries.max(message.deliveries().unwrap_or(0));
            let ids = &self.which.id;
            if ids.is_empty() || ids.iter().any(|id| message.message_id() == Some(id)) {
                self.found += 1;
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Hands back what was looked at, and says what a person should know.
    async fn close(self) -> anyhow::Result<()> {
        let Self { queue, looked, deliveries, .. } = self;
        let waiting = queue.waiting();
        queue.close().await?;
        if waiting > looked {
            table::note(&format!(
                "postrider: these are of the first {looked} of {waiting} messages; more with --limit"
            ));
        }
        if deliveries >= DELIVERIES_MANY {
            table::note(&format!(
                "postrider: the queue has handed a message out {deliveries} times, to those who looked too; if it \
                 has an x-delivery-limit (from RabbitMQ 4.0 on 20, unless it is set) it drops the message there"
            ));
        }
        Ok(())
    }
}

async fn list(mut shelf: Shelf<'_>, json: bool) -> anyhow::Result<ExitCode> {
    let mut messages = Vec::new();
    while let Some(message) = shelf.next().await? {
        messages.push(Summary::of(&message));
    }
    shelf.close().await?;
    if json {
        return table::print_json(&messages);
    }
    table::print(&page::HEADER, &messages.iter().map(Summary::cells).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

async fn show(mut shelf: Shelf<'_>, payload: bool, json: bool) -> anyhow::Result<ExitCode> {
    let mut array = json.then(JsonArray::default);
    while let Some(message) = shelf.next().await? {
        match &mut array {
            Some(array) => array.print(&[page::Document::of(&message, payload)])?,
            None => table::say(&page::page(&message, payload, shelf.found == 1))?,
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    end(shelf).await
}

async fn retry(mut shelf: Shelf<'_>, desk: &Desk, road: &Road<'_>, pick: &Pick) -> anyhow::Result<ExitCode> {
    let mut report = Report::new(pick.output.json);
    let sent = async {
        while let Some(message) = shelf.next().await? {
            let became = back::send(&mut shelf.queue, desk, road, &message).await?;
            report.tell(&message, became)?;
        }
        anyhow::Ok(())
    };
    let sent = sent.await;
    let left = report.end()?;
    sent.context(
        "send parked messages back; what is not said to be sent stays parked, a copy may have gone out",
    )?;
    let code = end(shelf).await?;
    Ok(if left > 0 { ExitCode::FAILURE } else { code })
}

/// A message without the mark stays, unless that is asked for: the queue's name may be mistyped, and its messages may
/// be waiting for their consumer.
async fn discard(mut shelf: Shelf<'_>, unmarked: bool, pick: &Pick) -> anyhow::Result<ExitCode> {
    let mut report = Report::new(pick.output.json);
    while let Some(message) = shelf.next().await? {
        if message.is_marked() || unmarked {
            shelf.queue.discard(&message).await?;
            report.tell(&message, Became::Discarded)?;
        } else {
            let why = format!(
                "it has no header inbox_parked_reason: see whether {:?} is a parking queue; to discard it \
                 nevertheless, say --unmarked",
                shelf.which.queue
            );
            report.tell(&message, Became::Left { why })?;
        }
    }
    let left = report.end()?;
    let code = end(shelf).await?;
    Ok(if left > 0 { ExitCode::FAILURE } else { code })
}

/// Says what `discard` would lose, and does nothing.
async fn warn(mut shelf: Shelf<'_>, unmarked: bool, pick: &Pick) -> anyhow::Result<ExitCode> {
    let (mut marked, mut others) = (Heap::default(), Heap::default());
    while let Some(message) = shelf.next().await? {
        let heap = if message.is_marked() { &mut marked } else { &mut others };
        heap.messages += 1;
        heap.bytes += message.body().len();
    }
    if shelf.found == 0 {
        Report::new(pick.output.json).end()?;
        return end(shelf).await;
    }
    let queue = &shelf.which.queue;
    shelf.close().await?;
    if marked.messages > 0 {
        table::note(&format!(
            "postrider: discarding loses {} parked messages ({}) for ever: nobody will handle them; to do it, say \
             --yes",
            marked.messages,
            marked.size()
        ));
    }
    if others.messages > 0 {
        let (does, to_do_it) =
            if unmarked { ("loses", "--yes") } else { ("does not touch", "--unmarked and --yes") };
        table::note(&format!(
            "postrider: discarding {does} {} messages ({}) that have no header inbox_parked_reason: see whether \
             {queue:?} is a parking queue; to discard them, say {to_do_it}",
            others.messages,
            others.size()
        ));
    }
    Ok(ExitCode::from(NOT_ASKED))
}

/// Messages that are counted.
#[derive(Default)]
struct Heap {
    messages: u32,
    bytes: usize,
}

impl Heap {
    fn size(&self) -> String {
        table::bytes(i64::try_from(self.bytes).unwrap_or(i64::MAX))
    }
}

/// The end of a command that needs a message.
async fn end(shelf: Shelf<'_>) -> anyhow::Result<ExitCode> {
    let (found, looked, queue) = (shelf.found, shelf.looked, &shelf.which.queue);
    shelf.close().await?;
    if found == 0 {
        bail!("find such a message among the first {looked} of queue {queue:?}");
    }
    Ok(ExitCode::SUCCESS)
}
