//! Many consumers of one queue with the inbox between, killed at random, and their Postgres too:
//!
//! ```console
//! $ cargo run -p postrider-inbox --example crowd [MESSAGES] [SEED]
//! ```
//!
//! Each message adds its number to a ledger, and many are delivered more than once. At the end the ledger has each
//! exactly once, whoever was killed when.

mod member;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use postrider_inbox::INBOX_SQL;
use testenv::consumer::{Parcel, Properties, Queue, QueueKind, publish};
use testenv::{Pair, PostgresOptions, RabbitMqOptions, Sql, eventually};
use tokio::time::sleep;

use member::Member;

const DATABASE: &str = "crowd";
const QUEUE: &str = "crowd";
const LEDGER: &str = "
    create table ledger (number bigint not null);
    create table account (id bigint primary key, balance bigint not null);
    insert into account select id, 0 from generate_series(0, 99) id";
/// Only so that what hangs ends.
const LIMIT: Duration = Duration::from_secs(600);
const PUBLISHED_AT_ONCE: usize = 5000;

const CONSUMERS: usize = 16;
const MESSAGES: u32 = 100_000;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["member", database, broker] => member::run(database, broker).await,
        [] => run(MESSAGES, fastrand::u64(..1 << 32)).await,
        [messages] => run(messages.parse().context("read MESSAGES")?, fastrand::u64(..1 << 32)).await,
        [messages, seed] => {
            run(messages.parse().context("read MESSAGES")?, seed.parse().context("read SEED")?).await
        }
        _ => bail!("read the arguments: crowd [MESSAGES] [SEED]"),
    }
}

async fn run(messages: u32, seed: u64) -> Result<()> {
    println!("crowd: seed {seed}, {CONSUMERS} consumers, {messages} messages");
    let pair = Pair::start(PostgresOptions::default(), RabbitMqOptions::default()).await?;
    pair.postgres.create_database(DATABASE).await?;
    let sql = pair.postgres.connect(DATABASE).await?;
    sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
    sql.batch_execute(LEDGER).await.context("create the ledger")?;
    let url = pair.rabbitmq.guest_url();
    let queue = Queue::declare(&url, QUEUE, QueueKind::Quorum, &[]).await?;
    let parked = Queue::declare(&url, &format!("{QUEUE}.parked"), QueueKind::Classic, &[]).await?;
    let mut random = fastrand::Rng::with_seed(seed);
    let deliveries = deliveries(&mut random, messages);
    for some in deliveries.chunks(PUBLISHED_AT_ONCE) {
        publish(&url, "", QUEUE, some.iter().map(|number| parcel(*number)).collect()).await?;
    }
    let mut crowd = Crowd { pair, random, members: Vec::new(), killed: 0, crashes: 0 };
    for _ in 0..CONSUMERS {
        crowd.join()?;
    }
    let begun = Instant::now();
    crowd.trouble(&queue, messages).await?;
    let took = begun.elapsed();
    for member in std::mem::take(&mut crowd.members) {
        member.end().await?;
    }
    ensure!(queue.left().await? == 0, "acknowledge every message");
    ensure!(parked.left().await? == 0, "park nothing");
    crowd.judge(messages).await?;
    #[expect(clippy::cast_precision_loss, reason = "so many deliveries are exact in f64")]
    let rate = deliveries.len() as f64 / took.as_secs_f64();
    println!(
        "{} deliveries of {} messages in {:.1} s: {rate:.0}/s, with {} kills of a consumer and {} of Postgres",
        deliveries.len(),
        messages,
        took.as_secs_f64(),
        crowd.killed,
        crowd.crashes
    );
    println!("the ledger adds up; no deadlock, no serialization failure, nothing parked");
    Ok(())
}

/// Every number once, and three tenths of them again, shuffled.
fn deliveries(random: &mut fastrand::Rng, messages: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=messages).collect();
    all.extend((0..messages / 10 * 3).map(|_| random.u32(1..=messages)));
    random.shuffle(&mut all);
    all
}

fn parcel(number: u32) -> Parcel {
    let properties = Properties {
        message_id: Some(format!("E-{number}")),
        message_type: Some("sale".to_owned()),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    Parcel { properties, body: number.to_string().into_bytes(), ..Parcel::default() }
}

/// The consumers, and the servers between them.
struct Crowd {
    pair: Pair,
    random: fastrand::Rng,
    members: Vec<Member>,
    killed: u32,
    crashes: u32,
}

impl Crowd {
    fn join(&mut self) -> Result<()> {
        let (database, broker) = (self.pair.postgres.admin_url(DATABASE), self.pair.rabbitmq.guest_url());
        self.members.push(Member::start(&database, &broker)?);
        Ok(())
    }

    /// Kills until all is done: several consumers a second, and Postgres every few seconds.
    async fn trouble(&mut self, queue: &Queue, messages: u32) -> Result<()> {
        let until = Instant::now() + LIMIT;
        loop {
            ensure!(Instant::now() < until, "see all messages handled within {LIMIT:?}");
            sleep(Duration::from_millis(self.random.u64(100..500))).await;
            if self.random.u32(..20) == 0 {
                self.crashes += 1;
                self.pair.postgres.sigkill().await?;
                self.pair.postgres.start_again().await?;
            } else {
                self.killed += 1;
                let at = self.random.usize(..self.members.len());
                self.members.swap_remove(at).kill().await?;
                self.join()?;
            }
            let sql = self.connect().await?;
            let handled = number(&sql, "select count(*) from ledger").await?;
            // A ledger that has too many will not be waited for.
            if handled >= i64::from(messages) && queue.depth().await? == 0 {
                return Ok(());
            }
        }
    }

    async fn connect(&self) -> Result<Sql> {
        eventually("Postgres to answer", LIMIT, async || Ok(self.pair.postgres.connect(DATABASE).await.ok()))
            .await
    }

    async fn judge(&self, messages: u32) -> Result<()> {
        let sql = self.connect().await?;
        let messages = i64::from(messages);
        let sum = messages * (messages + 1) / 2;
        for (query, expected) in [
            ("select count(*) from ledger", messages),
            ("select count(distinct number) from ledger", messages),
            ("select sum(number)::bigint from ledger", sum),
            ("select sum(balance)::bigint from account", sum),
            ("select count(*) from postrider.inbox where status = 'completed'", messages),
            ("select count(*) from postrider.inbox", messages),
        ] {
            let found = number(&sql, query).await?;
            ensure!(found == expected, "find {expected} by {query}: {found}");
        }
        let log = self.pair.postgres.log();
        for word in ["deadlock detected", "could not serialize"] {
            ensure!(!log.contains(word), "find no {word:?} in the log of Postgres");
        }
        ensure!(self.killed > 0, "kill anybody at all");
        Ok(())
    }
}

async fn number(sql: &Sql, query: &str) -> Result<i64> {
    Ok(sql.query_one(query, &[]).await.with_context(|| format!("ask {query}"))?.get(0))
}
