//! The relay at a steady rate far below its limit: how long an event takes, beside what a bare publisher's own
//! confirm takes on the same machine.

mod writer;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::{Consumer, Delivery, Queue, QueueKind};
use testenv::relay::{Program, Relay};
use tokio::time::sleep;

use super::backlog::Case;
use super::publisher::Child;
use super::quantile::Latency;
use super::rig::Rig;
use writer::{Writer, Written};

const DATABASE: &str = "steady";
const LIMIT: Duration = Duration::from_secs(60);
/// What every leg leaves out at its start.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    /// Events in a second.
    pub(super) rate: u32,
    /// For how long, after the warm-up.
    pub(super) seconds: u32,
}

/// What one run has shown.
pub(super) struct Run {
    /// The bare publisher, from publish to confirm, with nothing else on the machine.
    pub(super) alone: Latency,
    /// The same while as many events a second are committed in Postgres, as they are beside the relay.
    pub(super) beside: Latency,
    /// The relay.
    pub(super) relay: Relayed,
}

/// The relay's latencies.
pub(super) struct Relayed {
    /// From commit to confirm, as the relay's own histogram has it, each bucket taken as evenly filled.
    pub(super) delivery: Latency,
    /// From the hand-over to the broker to the confirm, by the same means.
    pub(super) publish: Latency,
    /// From the insert's answer at the writer to the arrival at the consumer: less than from the commit.
    pub(super) answered: Latency,
    /// From the sending of the insert to the arrival: more than from the commit.
    pub(super) sent: Latency,
}

impl Steady {
    /// Runs every leg so often, one after the other.
    pub(super) async fn measure(self, rig: &Rig, runs: u32) -> Result<Vec<Run>> {
        let sql = rig.database(DATABASE).await?;
        let url = rig.pair.postgres.admin_url(DATABASE);
        // For the tables. What the bare publisher sends lies before the slots that are read.
        rig.relay(DATABASE, DATABASE).await?;
        let case = Case { queue: QueueKind::Quorum, events: self.events(), rows: 1, aggregates: 10_000 };
        case.write(&sql).await?;
        let mut all = Vec::new();
        for run in 1..=runs {
            let alone = self.publisher(rig, None).await.context("measure the bare publisher")?;
            let beside = self.publisher(rig, Some(&url)).await;
            let beside = beside.context("measure the bare publisher beside a writer")?;
            let program = rig.relay(DATABASE, &format!("{DATABASE}{run}")).await?;
            let relay = self.relay(rig, &program, &url).await.context("measure the relay")?;
            all.push(Run { alone, beside, relay });
            eprintln!("run {run} of {runs}: done");
        }
        rig.remove(DATABASE).await?;
        Ok(all)
    }

    /// Events in all, those of the warm-up too.
    pub(super) fn events(self) -> u32 {
        let seconds = Duration::from_secs(self.seconds.into()) + WARM_UP;
        self.rate * u32::try_from(seconds.as_secs()).expect("less than a century")
    }

    async fn publisher(self, rig: &Rig, writer: Option<&str>) -> Result<Latency> {
        let (queue, consumer) = listen(rig).await?;
        let mut child = Child::start(rig, DATABASE, Some(self)).await?;
        let writer = writer.map(|url| Writer::start(url, self.rate));
        child.go().await?;
        let latency = Latency::from_line(&child.done().await?)?;
        child.end().await?;
        if let Some(writer) = writer {
            self.kept_up(&writer.stop().await?)?;
        }
        hang_up(queue, consumer, self.events() as usize).await?;
        Ok(latency)
    }

    async fn relay(self, rig: &Rig, program: &Program, url: &str) -> Result<Relayed> {
        let (queue, consumer) = listen(rig).await?;
        let mut relay = program.run()?;
        relay.wait_ready(LIMIT).await?;
        let began = Instant::now();
        let writer = Writer::start(url, self.rate);
        sleep(WARM_UP).await;
        let before = Page::of(&relay).await?;
        sleep(Duration::from_secs(self.seconds.into())).await;
        let after = Page::of(&relay).await?;
        let written = writer.stop().await?;
        self.kept_up(&written)?;
        let arrived = hang_up(queue, consumer, written.len()).await?;
        let exit = relay.terminate(LIMIT).await?;
        ensure!(exit.success(), "end the relay: {exit}; its log:\n{}", relay.log_text());

        let arrived: HashMap<&str, Instant> =
            arrived.iter().map(|delivery| (delivery.message_id(), delivery.arrived)).collect();
        let warm = written.iter().filter(|written| written.sent.duration_since(began) >= WARM_UP);
        let from = |start: fn(&Written) -> Instant| {
            let took = warm.clone().map(|written| {
                let arrived = arrived.get(&*written.id).context("find an event at the consumer")?;
                Ok(arrived.saturating_duration_since(start(written)))
            });
            Latency::of(took.collect::<Result<_>>()?)
        };
        Ok(Relayed {
            delivery: after.latency_since(&before, "postrider_delivery_seconds")?,
            publish: after.latency_since(&before, "postrider_publish_seconds")?,
            answered: from(|written| written.answered)?,
            sent: from(|written| written.sent)?,
        })
    }

    /// Makes sure that the rate was what the table says.
    fn kept_up(self, written: &[Written]) -> Result<()> {
        let (events, expected) = (written.len(), self.events() as usize);
        ensure!(
            events * 100 >= expected * 95,
            "keep the rate: only {events} events of {expected} were written"
        );
        Ok(())
    }
}

async fn listen(rig: &Rig) -> Result<(Queue, Consumer)> {
    let queue = rig.queue(QueueKind::Quorum).await?;
    let consumer = Consumer::start(&queue).await?;
    rig.rest().await?;
    Ok((queue, consumer))
}

/// Waits for the last event, makes sure that each arrived once, and removes the queue.
async fn hang_up(queue: Queue, consumer: Consumer, events: usize) -> Result<Vec<Delivery>> {
    consumer.wait_distinct(events, LIMIT).await?;
    let arrived = consumer.stop().await?;
    ensure!(arrived.len() == events, "trust the figures: {} messages of {events} events", arrived.len());
    queue.delete().await?;
    Ok(arrived)
}

/// The relay's metrics at one time.
struct Page(String);

impl Page {
    async fn of(relay: &Relay) -> Result<Self> {
        Ok(Self(relay.get("/metrics").await?.body))
    }

    fn latency_since(&self, earlier: &Self, histogram: &str) -> Result<Latency> {
        let (now, then) = (self.buckets(histogram)?, earlier.buckets(histogram)?);
        let since = now.iter().zip(then).map(|(&(bound, count), (_, before))| (bound, count - before));
        Latency::of_buckets(&since.collect::<Vec<_>>()).with_context(|| format!("read {histogram}"))
    }

    /// Upper bounds, and how many are at or below each.
    fn buckets(&self, histogram: &str) -> Result<Vec<(f64, f64)>> {
        let start = format!("{histogram}_bucket{{");
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(&start));
        lines
            .map(|line| {
                let (labels, count) = line.rsplit_once(' ')?;
                let (_, bound) = labels.split_once("le=\"")?;
                Some((bound.split_once('"')?.0.parse().ok()?, count.parse().ok()?))
            })
            .collect::<Option<_>>()
            .with_context(|| format!("read the buckets of {histogram}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_what_came_between_two_scrapes() {
        let page = |first, second| {
            Page(format!(
                "x_bucket{{slot=\"s\",le=\"0.001\"}} {first}\nx_bucket{{slot=\"s\",le=\"+Inf\"}} {second}\nx_sum 1\n"
            ))
        };
        assert_eq!(page(1, 2).buckets("x").unwrap(), [(0.001, 1.0), (f64::INFINITY, 2.0)]);
        let latency = page(110, 110).latency_since(&page(10, 10), "x").unwrap();
        assert!((latency.p50_ms - 0.5).abs() < 1e-9, "{latency:?}");
    }
}
