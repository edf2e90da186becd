//! The whole way: outbox, relay, broker, inbox. What one database says was sold, the other has booked, once.

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_inbox::consumer::{Consumer, Event, Handle, HandleError, Settings, Tally, Urls};
use postrider_inbox::{INBOX_SQL, Inbox};
use testenv::consumer::{Queue, QueueKind};
use testenv::{Link, Pair, PostgresOptions, Protocol, RabbitMqOptions, Rig, Scope, Sql, eventually};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_postgres::Transaction;

use crate::BINARY;

/// Generous: never measured, only there so that a test that hangs ends.
const LIMIT: Duration = Duration::from_secs(180);
const SALES: i64 = 1500;

/// Books what was sold.
struct Book;

impl Handle for Book {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        let amount = std::str::from_utf8(&event.body).map_err(HandleError::poison)?;
        let amount: i64 = amount.parse().map_err(HandleError::poison)?;
        let book = "insert into booked (sale, amount) values ($1, $2)";
        transaction.execute(book, &[&event.message_id, &amount]).await?;
        Ok(())
    }
}

/// A consumer with its connections to the broker on a link of its own, so that it can be killed.
struct Booking {
    link: Link,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<()>,
    tally: std::sync::Arc<Tally>,
}

impl Booking {
    fn start(broker: &Scope, books: &Scope, queue: &Queue) -> Result<Self> {
        let link = Link::start(broker.addresses().rabbitmq_port, Protocol::Amqp)?;
        let urls = Urls { broker: link.through(&broker.amqp_url()), database: books.admin_url() };
        let settings = Settings { parking_key: broker.named("parked"), ..Settings::new(queue.name()) };
        let consumer = Consumer::new(settings, Inbox::new("book-keeper"), urls, Book);
        let (tally, mut tasks) = (consumer.tally(), JoinSet::new());
        let (stop, stopped) = oneshot::channel();
        tasks.spawn(consumer.run(async move { drop(stopped.await) }));
        Ok(Self { link, stop, tasks, tally })
    }

    /// As SIGKILL does: the connections are reset, the transactions stay open until the server hears of it.
    async fn kill(self) -> Result<()> {
        self.link.refuse().await?;
        self.link.cut().await?;
        Ok(())
    }
}

async fn sum(sql: &Sql, query: &str) -> Result<(i64, i64)> {
    let row = sql.query_one(query, &[]).await.with_context(|| format!("ask {query}"))?;
    Ok((row.get(0), row.get(1)))
}

const BOOKED: &str = "select count(*), coalesce(sum(amount), 0)::bigint from booked";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_databases_agree_after_kills_of_the_relay_the_consumer_and_the_broker() -> Result<()> {
    let postgres = PostgresOptions { fsync: false, ..PostgresOptions::default() };
    let mut pair = Pair::private(postgres, RabbitMqOptions::default()).await?;
    let rig = Rig::new(pair.scope("shop").await?, BINARY).await?;
    let books = pair.scope("books").await?;
    let parked = Queue::declare(rig.queue.url(), &rig.scope.named("parked"), QueueKind::Classic, &[]).await?;
    let ledger = books.connect().await?;
    ledger.batch_execute(INBOX_SQL).await.context("install the inbox")?;
    ledger.batch_execute("create table booked (sale text not null, amount bigint not null)").await?;
    let shop = rig.sql().await?;
    shop.batch_execute("create table sold (amount bigint not null)").await?;

    let mut relay = rig.program.run()?;
    let mut booking = Booking::start(&rig.scope, &books, &rig.queue)?;
    for sale in 1..=SALES {
        // Every ninth customer changes his mind: nothing of it is ever booked.
        let end = if sale % 9 == 0 { "rollback" } else { "commit" };
        let sell = format!(
            "begin; insert into sold values ({sale});
             insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('sale', {} , 'sold', '{sale}'); {end}",
            sale % 20
        );
        shop.batch_execute(&sell).await.context("sell")?;
        match sale {
            300 | 700 | 1100 => {
                relay.kill().await?;
                relay = rig.program.run()?;
            }
            500 | 900 => {
                booking.kill().await?;
                booking = Booking::start(&rig.scope, &books, &rig.queue)?;
            }
            1300 => {
                pair.rabbitmq.remember_queues().await?;
                pair.rabbitmq.sigkill().await?;
            }
            1400 => pair.rabbitmq.start_again().await?,
            _ => {}
        }
    }
    let sold = sum(&shop, "select count(*), sum(amount)::bigint from sold").await?;
    let mut booked = (0, 0);
    let arrived = eventually("all to be booked", LIMIT, async || {
        booked = sum(&ledger, BOOKED).await?;
        Ok((booked.0 >= sold.0).then_some(()))
    });
    arrived.await.with_context(|| format!("{booked:?} of {sold:?}; the relay:\n{}", relay.log_text()))?;
    relay.terminate(LIMIT).await?;
    eventually("the queue to be empty", LIMIT, async || Ok((rig.queue.depth().await? == 0).then_some(())))
        .await?;
    let _ = booking.stop.send(());
    booking.tasks.join_all().await;

    assert_eq!(sum(&ledger, BOOKED).await?, sold);
    let distinct = sum(&ledger, "select count(distinct sale), count(distinct amount) from booked").await?;
    assert_eq!(distinct, (sold.0, sold.0));
    assert_eq!((rig.queue.depth().await?, parked.depth().await?), (0, 0));
    assert_eq!(booking.tally.counts().parked, 0);
    Ok(())
}
