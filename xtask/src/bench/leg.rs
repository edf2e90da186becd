//! A drain, three times over the same log: by `pg_recvlogical`, by the bare publisher, by the relay.

use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::Sql;
use testenv::consumer::{Delivery, Queue};
use testenv::relay::{Program, Usage};
use tokio::process::Command;
use tokio::time::sleep;
use tokio_postgres::types::PgLsn;

use super::backlog::Case;
use super::depth::Depth;
use super::publisher::Child;
use super::rig::Rig;

const LIMIT: Duration = Duration::from_secs(60);
/// How often the walsender is looked at that ends with its reader.
const PAUSE: Duration = Duration::from_millis(5);
const PLUGIN: [(&str, &str); 3] =
    [("proto_version", "1"), ("publication_names", "postrider"), ("messages", "true")];

/// What one run of a case has shown.
pub(super) struct Run {
    /// `pg_recvlogical`.
    pub(super) recvlogical: Reading,
    /// The bare publisher.
    pub(super) publisher: Reading,
    /// The relay.
    pub(super) relay: Reading,
}

/// One leg's figures. CPU is in microseconds per event; what has no part in a leg reads 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    pub(super) events_per_s: f64,
    pub(super) own_us: f64,
    pub(super) walsender_us: f64,
    pub(super) broker_us: f64,
    pub(super) peak_rss_mib: f64,
}

/// Everything that the legs of a case share.
struct Drain<'a> {
    rig: &'a Rig,
    database: &'a str,
    sql: Sql,
    case: &'a Case,
    /// Where the log ends behind the events.
    end: PgLsn,
}

/// Runs every leg so often, one after the other, so that what disturbs the machine disturbs all.
pub(super) async fn drain(rig: &Rig, database: &str, case: &Case, runs: u32) -> Result<Vec<Run>> {
    let sql = rig.database(database).await?;
    // Every leg reads the whole log, so every leg has a slot that is older than it.
    let mut programs = Vec::new();
    for run in 1..=runs {
        let slot = format!("{database}_relay{run}");
        let program = rig.relay(database, &slot).await?;
        programs.push((slot, program));
        let create = "select pg_create_logical_replication_slot($1, 'pgoutput')";
        sql.execute(create, &[&format!("{database}_recv{run}")]).await.context("create a slot")?;
    }
    let end = case.write(&sql).await?;
    let drain = Drain { rig, database, sql, case, end };
    let mut all = Vec::new();
    for (run, (slot, program)) in (1..).zip(&programs) {
        let recvlogical = drain.recvlogical(&format!("{database}_recv{run}")).await;
        let recvlogical = recvlogical.context("measure pg_recvlogical")?;
        eprintln!("run {run} of {runs}: (a) {recvlogical}");
        let (publisher, sent) = drain.publisher().await.context("measure the bare publisher")?;
        eprintln!("run {run} of {runs}: (b) {publisher}");
        let (relay, relayed) = drain.relay(slot, program).await.context("measure the relay")?;
        eprintln!("run {run} of {runs}: (c) {relay}");
        same(&sent, &relayed)?;
        all.push(Run { recvlogical, publisher, relay });
    }
    rig.remove(database).await?;
    Ok(all)
}

impl Drain<'_> {
    async fn recvlogical(&self, slot: &str) -> Result<Reading> {
        let postgres = &self.rig.pair.postgres;
        let mut command = Command::new(postgres.bin().join("pg_recvlogical"));
        command.arg("--dbname").arg(postgres.admin_url(self.database)).args(["--slot", slot, "--start"]);
        command.args(["--no-loop", "--file", "/dev/null", "--endpos", &self.end.to_string()]);
        for (name, value) in PLUGIN {
            command.arg("--option").arg(format!("{name}={value}"));
        }
        let started = Instant::now();
        let mut reader = command.stdin(Stdio::null()).kill_on_drop(true).spawn()?;
        let walsender = self.rig.walsender(&self.sql, slot).await?;
        let mut used = Duration::ZERO;
        let exit: ExitStatus = loop {
            // The walsender ends with its reader; what it had used a moment before is what it has used.
            used = Usage::of(walsender).map_or(used, |usage| usage.cpu.max(used));
            if let Some(exit) = reader.try_wait()? {
                break exit;
            }
            sleep(PAUSE).await;
        };
        let took = started.elapsed();
        ensure!(exit.success(), "read the log: {exit}");
        self.rig.acknowledged(&self.sql, slot, self.end).await?;
        Ok(Reading {
            events_per_s: f64::from(self.case.events) / took.as_secs_f64(),
            walsender_us: self.per_event(used),
            ..Reading::default()
        })
    }

    async fn publisher(&self) -> Result<(Reading, Delivery)> {
        let (queue, depth) = self.empty_queue().await?;
        let mut child = Child::start(self.rig, self.database, None).await?;
        let (broker, own) = (self.rig.broker_cpu()?, child.usage()?.cpu);
        child.go().await?;
        let events_per_s = depth.fill(self.case.events).await?;
        child.done().await?;
        let reading = Reading {
            events_per_s,
            own_us: self.per_event(child.usage()?.cpu.saturating_sub(own)),
            broker_us: self.per_event(self.rig.broker_cpu()?.saturating_sub(broker)),
            ..Reading::default()
        };
        child.end().await?;
        Ok((reading, self.close(queue, depth).await?))
    }

    async fn relay(&self, slot: &str, program: &Program) -> Result<(Reading, Delivery)> {
        let (queue, depth) = self.empty_queue().await?;
        let broker = self.rig.broker_cpu()?;
        let mut relay = program.run()?;
        let filled = depth.fill(self.case.events).await;
        let events_per_s = filled.with_context(|| format!("the relay's log:\n{}", relay.log_text()))?;
        let walsender = self.rig.walsender(&self.sql, slot).await?;
        let (own, walsender) = (relay.usage()?, Usage::of(walsender)?.cpu);
        let broker = self.rig.broker_cpu()?.saturating_sub(broker);
        let peak_rss = u32::try_from(own.peak_rss_bytes / 1024).context("measure the relay's memory")?;
        // All that is in the queue is confirmed, and nothing comes again.
        self.rig.acknowledged(&self.sql, slot, self.end).await?;
        let exit = relay.terminate(LIMIT).await?;
        ensure!(exit.success(), "end the relay: {exit}; its log:\n{}", relay.log_text());
        let reading = Reading {
            events_per_s,
            own_us: self.per_event(own.cpu),
            walsender_us: self.per_event(walsender),
            broker_us: self.per_event(broker),
            peak_rss_mib: f64::from(peak_rss) / 1024.0,
        };
        Ok((reading, self.close(queue, depth).await?))
    }

    async fn empty_queue(&self) -> Result<(Queue, Depth)> {
        let queue = self.rig.queue(self.case.queue).await?;
        let depth = Depth::open(queue.url(), queue.name()).await?;
        ensure!(depth.count().await? == 0, "find the queue empty");
        self.rig.rest().await?;
        Ok((queue, depth))
    }

    /// Makes sure that the queue holds each event once, takes out the first, and removes the queue.
    async fn close(&self, queue: Queue, depth: Depth) -> Result<Delivery> {
        let (count, events) = (depth.count().await?, self.case.events);
        ensure!(count == events, "trust the figures: {count} messages of {events} events");
        let first = queue.take().await?.context("take a message out of a full queue")?;
        queue.delete().await?;
        Ok(first)
    }

    fn per_event(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / f64::from(self.case.events)
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events_per_s, own_us, walsender_us, broker_us, peak_rss_mib } = self;
        write!(
            f,
            "{events_per_s:.0} events/s; CPU µs/event: own {own_us:.1}, walsender {walsender_us:.1}, "
        )?;
        write!(f, "broker {broker_us:.1}; peak RSS {peak_rss_mib:.1} MiB")
    }
}

/// Makes sure that two publishers send the same: all properties, all headers with their types, as many bytes.
fn same(one: &Delivery, other: &Delivery) -> Result<()> {
    let shape = |delivery: &Delivery| {
        let headers: Vec<_> =
            delivery.headers.iter().map(|(name, value)| format!("{name} {}", value.letter())).collect();
        let sent = &delivery.properties;
        let properties = [
            sent.content_type.clone(),
            sent.delivery_mode.map(|mode| mode.to_string()),
            sent.message_type.clone(),
            sent.app_id.clone(),
            sent.message_id.as_ref().map(|id| id.len().to_string()),
            sent.timestamp.map(|seconds| seconds.to_string().len().to_string()),
            sent.correlation_id.clone(),
        ];
        let route = (delivery.exchange.clone(), delivery.routing_key.clone());
        (route, properties, headers, delivery.body.len())
    };
    let (one, other) = (shape(one), shape(other));
    ensure!(one == other, "compare like with like: the bare publisher sends {one:?}, the relay {other:?}");
    Ok(())
}
