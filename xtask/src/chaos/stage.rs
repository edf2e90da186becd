//! The pair of servers, the links, the relays and the consumer that the faults play with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::{Consumer, Delivery};
use testenv::oracle::Slot;
use testenv::relay::{Program, Relay};
use testenv::{Link, Pair, PostgresOptions, Protocol, RabbitMqOptions, Rig, eventually};
use tokio::time::sleep;
use tokio_postgres::types::PgLsn;

use super::fault::Inner;

/// For everything that has to happen at some time.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Stage {
    pub(super) rig: Rig,
    pub(super) postgres_link: Link,
    pub(super) broker_link: Link,
    program: Program,
    /// Every relay that ever ran, the one that is at work last.
    relays: Vec<Relay>,
    peak_bytes: u64,
    consumer: Option<Consumer>,
    /// What earlier consumers received.
    deliveries: Vec<Delivery>,
    // Last, so that whatever uses the servers is gone before.
    pub(super) pair: Pair,
}

impl Stage {
    pub(super) async fn set(binary: &Path) -> Result<Self> {
        let pair = Pair::start(PostgresOptions::default(), RabbitMqOptions::default()).await?;
        let rig = Rig::new(pair.scope("chaos").await?, binary).await?;
        // RabbitMQ 3.10 writes down which quorum queues it has only some time after their declaration.
        pair.rabbitmq.ctl().run(&["eval", "[dets:sync(Table) || Table <- dets:all()]."]).await?;
        let postgres_link = Link::start(pair.postgres.port(), Protocol::Postgres)?;
        let broker_link = Link::start(pair.rabbitmq.port(), Protocol::Amqp)?;
        let postgres_url =
            format!("{}?options=-c%20wal_sender_timeout%3D6s", postgres_link.through(&rig.relay_url()));
        let program = rig
            .program
            .clone()
            .set("postgres.url", postgres_url)
            .set("rabbitmq.url", broker_link.through(&rig.scope.amqp_url()))
            // So that what lasts a few seconds here shows all that lasts for minutes elsewhere.
            .set("rabbitmq.heartbeat_s", "2")
            .set("rabbitmq.confirm_timeout_ms", "4000")
            .set("retry.max_ms", "1000")
            .set("retry.attempts", "5");
        let (relays, deliveries, consumer) = (Vec::new(), Vec::new(), None);
        Ok(Self {
            rig,
            postgres_link,
            broker_link,
            program,
            relays,
            peak_bytes: 0,
            consumer,
            deliveries,
            pair,
        })
    }

    /// The relay at work.
    pub(super) fn relay(&mut self) -> &mut Relay {
        self.relays.last_mut().expect("one is started before anything is done to it")
    }

    /// Starts another relay; it need not be ready when this returns.
    pub(super) fn start(&mut self) -> Result<()> {
        self.relays.push(self.program.run()?);
        Ok(())
    }

    /// Kills the relay as no orderly end would.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.note_memory()?;
        self.relay().kill().await
    }

    /// Ends the relay as an operator would.
    pub(super) async fn end(&mut self) -> Result<()> {
        self.note_memory()?;
        let exit = self.relay().terminate(LIMIT).await?;
        ensure!(exit.success(), "end the relay: {exit}");
        Ok(())
    }

    /// Kills the relay at work once another stands by, which then has the slot.
    pub(super) async fn fail_over(&mut self) -> Result<()> {
        let first = self.wait_walsender("read by the first relay", |_| true).await?;
        self.start()?;
        self.relay().wait_reason("standby", LIMIT).await?;
        let at = self.relays.len() - 2;
        self.peak_bytes = self.peak_bytes.max(self.relays[at].usage()?.peak_rss_bytes);
        self.relays[at].kill().await?;
        self.wait_walsender("read by the second relay", |pid| pid != first).await.map(drop)
    }

    async fn wait_walsender(&self, what: &str, wanted: impl Fn(i32) -> bool) -> Result<i32> {
        let sql = self.rig.sql().await?;
        let is_read = |slot: &Slot| slot.active_pid.is_some_and(&wanted);
        let slot = Slot::wait(&sql, self.rig.name(), what, LIMIT, is_read).await?;
        slot.active_pid.context("find who reads the slot")
    }

    /// What happens to the relay in the middle of something else. It is not waited for.
    pub(super) async fn inner(&mut self, inner: Inner) -> Result<()> {
        match inner {
            Inner::Nothing => return Ok(()),
            Inner::RelayKilled => self.kill().await?,
            Inner::RelayTerminated => self.end().await?,
        }
        self.start()
    }

    /// Lets half of the time pass, then what is to happen in the middle, then the rest.
    pub(super) async fn hold(&mut self, time: Duration, inner: Inner) -> Result<()> {
        sleep(time / 2).await;
        self.inner(inner).await?;
        sleep(time / 2).await;
        Ok(())
    }

    /// No fault is a reason for the relay to end by itself.
    pub(super) fn ensure_running(&mut self) -> Result<()> {
        self.note_memory().context("find the relay running: it has ended by itself")
    }

    /// The most memory that any relay has had resident so far, in bytes.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    fn note_memory(&mut self) -> Result<()> {
        ensure!(self.relay().is_running()?, "look at the relay: it has ended");
        self.peak_bytes = self.peak_bytes.max(self.relay().usage()?.peak_rss_bytes);
        Ok(())
    }

    /// Marks in the queue what the slot has passed, before a fault.
    pub(super) async fn mark(&self) -> Result<()> {
        self.rig.mark().await
    }

    /// The same where nobody has the slot, after the relay was killed or kept away from Postgres.
    pub(super) async fn mark_free(&self) -> Result<()> {
        let slot = Slot::wait_free(&*self.rig.sql().await?, self.rig.name(), LIMIT).await?;
        self.rig.queue.mark(slot.confirmed_flush_lsn).await
    }

    /// Starts to consume, unless somebody does.
    pub(super) async fn consume(&mut self) -> Result<()> {
        if self.consumer.is_none() {
            self.consumer = Some(Consumer::start(&self.rig.queue).await?);
        }
        Ok(())
    }

    /// Ends the consumer in good order: what it could not acknowledge stays in the queue.
    pub(super) async fn pause_consuming(&mut self) -> Result<()> {
        if let Some(consumer) = self.consumer.take() {
            self.deliveries.extend(consumer.stop().await?);
        }
        Ok(())
    }

    /// Takes all that is left in the queue; returns everything that ever arrived, in order.
    pub(super) async fn empty(&mut self) -> Result<Vec<Delivery>> {
        self.pause_consuming().await?;
        self.deliveries.extend(testenv::consumer::drain(&self.rig.queue).await?);
        Ok(std::mem::take(&mut self.deliveries))
    }

    /// Waits until the slot has reached the end of the log as it is now.
    pub(super) async fn wait_followed(&mut self, limit: Duration) -> Result<()> {
        let sql = self.rig.sql().await?;
        let end: PgLsn = sql.query_one("select pg_current_wal_flush_lsn()", &[]).await?.get(0);
        let mut stands = None;
        let followed = eventually(format!("the slot to reach {end}"), limit, async || {
            self.ensure_running()?;
            let slot = self.rig.slot().await?;
            stands = Some(slot.confirmed_flush_lsn);
            Ok((slot.confirmed_flush_lsn >= end).then_some(()))
        })
        .await;
        followed.with_context(|| format!("it stands at {stands:?}"))
    }

    /// Writes every relay's and server's log into a folder, for people.
    pub(super) fn save_logs(&self, seed: u64) -> Result<PathBuf> {
        let folder = std::env::temp_dir().join(format!("postrider-chaos-{seed}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).with_context(|| format!("write {name}"))
        };
        for (number, relay) in self.relays.iter().enumerate() {
            write(&format!("relay-{number}.log"), &relay.log_text())?;
        }
        write("postgres.log", &self.pair.postgres.log())?;
        write("rabbitmq.log", &self.pair.rabbitmq.log())?;
        Ok(folder)
    }
}
