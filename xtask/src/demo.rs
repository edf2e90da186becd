//! `cargo xtask demo`: a shop, a relay and a consumer on real servers, and a relay that is killed on the way.
//!
//! Every number it shows is computed from Postgres and from what the consumer received; the relay is not asked.

mod progress;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::Sql;
use testenv::consumer::Consumer;
use testenv::oracle::{Slot, Truth, Verdict, judge};
use testenv::relay::{Program, Relay};
use testenv::writer::{Load, Writer};
use tokio::time::{MissedTickBehavior, interval, sleep};

use progress::{Latencies, Screen};
pub(crate) use stage::build;
use stage::{SLOT, Stage};

const LIMIT: Duration = Duration::from_secs(60);
/// How often the numbers are taken.
const TICK: Duration = Duration::from_millis(250);
/// How long the relay stays dead: long enough to be seen on the screen.
const DEAD: Duration = Duration::from_secs(1);

/// How to show it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave everything running at the end, and say where
    #[arg(long)]
    keep: bool,
    /// How long the shop writes
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// How many transactions the shop writes in a second
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Do not ask before a missing server is installed
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(root: &Path, arguments: Arguments) -> Result<()> {
    let servers = crate::install::servers(arguments.yes)?;
    let binary = build(root)?;
    let stage = Stage::set(root, &binary, servers).await?;
    let sql = stage.admin().await?;
    let consumer = Consumer::start(&stage.queue).await?;
    let mut relay = start(&stage.program).await?;
    let load = Load { transactions_per_second: Some(f64::from(arguments.rate)), ..Load::default() };
    let mut show = Show {
        stage: &stage,
        sql: &sql,
        consumer: &consumer,
        writer: Writer::start(&stage.shop_url, &load),
        latencies: Latencies::default(),
        screen: Screen::new(),
        begun: Instant::now(),
    };
    let half = Duration::from_secs(arguments.seconds) / 2;
    show.play(half).await?;
    show.kill(&mut relay).await?;
    show.play(DEAD).await?;
    relay = start(&stage.program).await?;
    show.screen.say("the relay runs again");
    show.play(half.saturating_sub(DEAD)).await?;
    let Show { mut writer, mut latencies, mut screen, .. } = show;
    writer.stop().await?;
    latencies.commit(writer.take_commit_times());
    screen.say("the shop is closed; what is still in flight arrives");

    let truth = Truth::of_ledger(&sql).await?;
    consumer.wait_all(&truth, LIMIT).await.unwrap_or_else(|error| screen.say(&format!("{error:#}")));
    latencies.arrive(&consumer);
    let verdict = judge(&truth, &consumer.finish(&truth, Duration::from_secs(5)).await?, &[]);
    progress::table(&verdict, &latencies);
    judged(&verdict)?;
    if arguments.keep {
        return stage.keep(&relay).await;
    }
    let exit = relay.terminate(LIMIT).await?;
    ensure!(exit.success(), "end the relay: {exit}; its log:\n{}", relay.log_text());
    Ok(())
}

/// Starts the relay and waits until events flow.
async fn start(program: &Program) -> Result<Relay> {
    let mut relay = program.run()?;
    relay.wait_ready(LIMIT).await?;
    Ok(relay)
}

/// What would make the demo a failure.
fn judged(verdict: &Verdict) -> Result<()> {
    ensure!(verdict.is_clean(), "keep every promise:\n{verdict}");
    ensure!(verdict.committed > 0, "show anything: the shop has written nothing");
    Ok(())
}

/// The part in which events flow.
struct Show<'a> {
    stage: &'a Stage,
    sql: &'a Sql,
    consumer: &'a Consumer,
    writer: Writer,
    latencies: Latencies,
    screen: Screen,
    begun: Instant,
}

impl Show<'_> {
    /// Lets time pass, and shows how things are.
    async fn play(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < end {
            tick.tick().await;
            self.count();
            let lag_bytes = self.lag_bytes().await?;
            self.screen.progress(self.begun.elapsed(), &mut self.latencies, lag_bytes);
        }
        Ok(())
    }

    /// Takes in what was committed and what has arrived since the last call.
    fn count(&mut self) {
        self.latencies.commit(self.writer.take_commit_times());
        self.latencies.arrive(self.consumer);
    }

    /// Kills the relay as no orderly end would, with events in flight if there are any within a second, and marks in
    /// the queue how far it had reported.
    async fn kill(&mut self, relay: &mut Relay) -> Result<()> {
        let limit = Instant::now() + DEAD;
        while self.latencies.in_flight() == 0 && Instant::now() < limit {
            sleep(Duration::from_millis(1)).await;
            self.count();
        }
        relay.kill().await?;
        let count = self.latencies.in_flight();
        self.screen.say(&format!("SIGKILL to the relay, {count} events in flight; the shop goes on"));
        let slot = Slot::wait_free(self.sql, SLOT, LIMIT).await?;
        self.stage.queue.mark(slot.confirmed_flush_lsn).await
    }

    /// How much log the server has written beyond what the slot has acknowledged.
    async fn lag_bytes(&self) -> Result<i64> {
        let query = "select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
                       from pg_replication_slots where slot_name = $1";
        Ok(self.sql.query_one(query, &[&SLOT]).await.context("read the slot's lag")?.get(0))
    }
}

impl Stage {
    /// Leaves everything running until Ctrl-C, and prints what arrives.
    async fn keep(&self, relay: &Relay) -> Result<()> {
        println!("\nEverything runs on; Ctrl-C ends it.\n");
        println!("  Postgres   {}", self.shop_url);
        println!("  RabbitMQ   {}, exchange postrider, queue {}", self.queue.url(), self.queue.name());
        println!("  relay      http://{}/status, /metrics, /readyz, /livez", relay.http_address().await?);
        println!("\nWrite an event, and it arrives here:\n\n  psql '{}' -c \\", self.shop_url);
        println!(
            "    \"insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '4711', 'placed', '{{\\\"total\\\": 42}}')\"\n"
        );
        let consumer = Consumer::start(&self.queue).await?;
        let show = async {
            let mut seen = 0;
            loop {
                for delivery in consumer.since(seen) {
                    let body = String::from_utf8_lossy(&delivery.body);
                    println!("arrived: {} {} {body}", delivery.routing_key, delivery.message_id());
                    seen += 1;
                }
                sleep(TICK).await;
            }
        };
        tokio::select! {
            biased;
            // The person's word comes first.
            stop = tokio::signal::ctrl_c() => stop.context("wait for Ctrl-C"),
            () = show => Ok(()),
        }
    }
}
