//! The one scenario: a stage, a shop under load, a relay, and the judgement at the end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use testenv::consumer::{Consumer, Delivery, Queue};
use testenv::oracle::{Fault, Slot, Verdict, judge};
use testenv::relay::{Program, Relay};
use testenv::writer::{Load, Writer};
use testenv::{Link, Postgres, PostgresOptions, Protocol, Rig, eventually};
use tokio_postgres::types::PgLsn;

use crate::servers::Servers;
use crate::setting::Setting;

/// For everything that has to happen at some time.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The last lines of each log that a failure shows: of the relays', and of the servers'.
const LOG_LINES: [usize; 2] = [100, 15];

/// What a row plays with.
pub(crate) struct Scene {
    pub(crate) servers: Servers,
    /// The usual Postgres, where the row has another.
    resting: Option<Postgres>,
    pub(crate) rig: Rig,
    /// The relay's program, by way of the links.
    pub(crate) program: Program,
    /// All that ever ran, the latest last.
    pub(crate) relays: Vec<Relay>,
    pub(crate) writer: Option<Writer>,
    /// A consumer that runs from early on; without one the queue is read at the end, which is exact also where the
    /// broker fails.
    pub(crate) consumer: Option<Consumer>,
    /// What the row itself has taken from the queue, in order, before the consumer.
    pub(crate) taken: Vec<Delivery>,
    /// Faults that have no mark in the queue.
    pub(crate) faults: Vec<Fault>,
    postgres_link: Option<Link>,
    broker_link: Option<Link>,
    load: Load,
}

/// Sets the stage and acts. A failure comes with the relays' logs, and the servers it was found on are not used again.
pub(crate) async fn play(
    row: &str,
    setting: Setting,
    act: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<()> {
    let servers = Servers::take().await?;
    let began = Instant::now();
    let mut scene = Scene::set(row, &setting, servers).await?;
    let acted = async {
        act(&mut scene).await?;
        scene.clear().await
    };
    if let Err(error) = acted.await {
        bail!("{row}: {error:#}\n{}", scene.logs());
    }
    scene.leave().give_back();
    println!("{row}: {:.1?} in all", began.elapsed());
    Ok(())
}

/// The usual row: harm under load, after which only what the slot had not passed may arrive twice.
pub(crate) async fn survives(
    row: &str,
    setting: Setting,
    harm: impl AsyncFnOnce(&mut Scene) -> Result<()>,
) -> Result<()> {
    play(row, setting, async |scene| {
        scene.begin().await?;
        scene.rig.mark().await?;
        let began = Instant::now();
        harm(scene).await?;
        println!("{row}: the harm took {:.1?}", began.elapsed());
        scene.settle().await.map(drop)
    })
    .await
}

impl Scene {
    async fn set(row: &str, setting: &Setting, mut servers: Servers) -> Result<Self> {
        let mut resting = None;
        if setting.postgres.is_some() {
            let options = PostgresOptions { bin: setting.postgres.clone(), ..PostgresOptions::default() };
            resting = Some(std::mem::replace(&mut servers.postgres, Postgres::start(options).await?));
        }
        let scope = servers.scope(row).await?;
        let queue =
            Queue::declare(&scope.amqp_url(), scope.name(), setting.queue, &setting.arguments).await?;
        queue.bind(scope.name(), setting.keys).await?;
        let rig = Rig::without_objects(scope, env!("CARGO_BIN_EXE_postrider"), queue);
        rig.admin.expect(&["init"]).await?;
        rig.grant().await?;
        testenv::writer::create_shop(&*rig.sql().await?).await?;

        let mut postgres_url = rig.relay_url();
        let mut broker_url = rig.scope.amqp_url();
        let mut postgres_link = None;
        if setting.postgres_link {
            let link = postgres_link.insert(Link::start(servers.postgres.port(), Protocol::Postgres)?);
            postgres_url = link.through(&postgres_url);
        }
        let mut broker_link = None;
        if setting.broker_link {
            let link = broker_link.insert(Link::start(servers.rabbitmq.port(), Protocol::Amqp)?);
            broker_url = link.through(&broker_url);
        }
        if !setting.session.is_empty() {
            let options: Vec<_> = setting.session.iter().map(|option| format!("-c%20{option}")).collect();
            let options = options.join("%20").replace('=', "%3D");
            postgres_url = format!("{postgres_url}?options={options}");
        }
        let mut program = rig
            .program
            .clone()
            .set("postgres.url", postgres_url)
            .set("rabbitmq.url", broker_url)
            // An outage of a test is short.
            .set("retry.max_ms", "1000");
        for (key, value) in &setting.configuration {
            program = program.set(key, *value);
        }
        Ok(Self {
            servers,
            resting,
            rig,
            program,
            relays: Vec::new(),
            writer: None,
            consumer: None,
            taken: Vec::new(),
            faults: Vec::new(),
            postgres_link,
            broker_link,
            load: setting.load.clone(),
        })
    }

    /// The relay runs and is ready, the shop writes, and events flow.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        self.start().await?;
        self.write();
        self.wait_published(50).await
    }

    /// Starts another relay and waits until it is ready.
    pub(crate) async fn start(&mut self) -> Result<()> {
        self.relays.push(self.program.run()?);
        self.relay().wait_ready(LIMIT).await
    }

    /// Opens the shop.
    pub(crate) fn write(&mut self) {
        self.writer = Some(self.rig.write(&self.load));
    }

    /// The latest relay.
    pub(crate) fn relay(&mut self) -> &mut Relay {
        self.relays.last_mut().expect("a row starts a relay before it does anything to it")
    }

    /// The way from the relay to Postgres.
    pub(crate) fn postgres_link(&self) -> &Link {
        self.postgres_link.as_ref().expect("the row's setting has this link")
    }

    /// The way from the relay to the broker.
    pub(crate) fn broker_link(&self) -> &Link {
        self.broker_link.as_ref().expect("the row's setting has this link")
    }

    /// Waits until the latest relay has seen so many more events confirmed than now.
    pub(crate) async fn wait_published(&mut self, more: u32) -> Result<()> {
        let relay = self.relay();
        let goal = relay.metric("postrider_events_published_total").await? + f64::from(more);
        eventually(format!("{more} more events to be confirmed"), LIMIT, async || {
            let published = relay.metric("postrider_events_published_total").await?;
            Ok((published >= goal).then_some(()))
        })
        .await
    }

    /// Waits until the latest relay owes at least so many events, by its own word; returns how many.
    pub(crate) async fn wait_owed(&mut self, least: u64) -> Result<u64> {
        let relay = self.relay();
        eventually(format!("{least} events to be owed"), LIMIT, async || {
            let owed = relay.status().await?["owed"]["events"].as_u64().context("read /status")?;
            Ok((owed >= least).then_some(owed))
        })
        .await
    }

    /// The end of every row: the shop still sells, then it closes; the slot gets to the end of the log, and what is in
    /// the queue is judged.
    ///
    /// Returns what has arrived, in order.
    pub(crate) async fn settle(&mut self) -> Result<Vec<Delivery>> {
        self.settle_beside(&[]).await
    }

    /// The same, with exactly these events undelivered in quarantine.
    pub(crate) async fn settle_beside(&mut self, kept: &[&str]) -> Result<Vec<Delivery>> {
        let (verdict, deliveries) = self.judge(kept, LIMIT).await?;
        verdict.expect_clean()?;
        self.end(LIMIT).await?;
        Ok(deliveries)
    }

    /// What [`Self::settle_beside`] does but for the last word on the verdict, and the relay runs on.
    pub(crate) async fn judge(&mut self, kept: &[&str], limit: Duration) -> Result<(Verdict, Vec<Delivery>)> {
        if let Some(mut writer) = self.writer.take() {
            writer.wait_events(100, LIMIT).await?;
            writer.stop().await?;
        }
        let followed = self.wait_followed().await;
        let consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => Consumer::start(&self.rig.queue).await?,
        };
        let quarantine = self.quarantine().await?;
        let truth = self.rig.truth().await?.with(&quarantine);
        let mut deliveries = std::mem::take(&mut self.taken);
        let to_come = truth.clone().without(&deliveries);
        deliveries.extend(consumer.finish(&to_come, limit).await?);
        let verdict = judge(&truth, &deliveries, &self.faults);
        // Before the slot: the oracle says more.
        followed.with_context(|| verdict.to_string())?;
        println!("{} events, {} copies", verdict.committed, verdict.duplicates);
        let undelivered = quarantine.undelivered();
        let expected = kept.iter().all(|id| quarantine.of(id).is_some()) && verdict.quarantined == kept.len();
        ensure!(
            expected && undelivered == kept.len(),
            "find {} events in quarantine: {undelivered}\n{verdict}",
            kept.len()
        );
        Ok((verdict, deliveries))
    }

    /// Ends the latest relay as an operator would.
    pub(crate) async fn end(&mut self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        let exit = self.relay().terminate(limit).await?;
        ensure!(exit.success(), "end the relay: {exit}");
        println!("SIGTERM to exit: {:.1?}", began.elapsed());
        Ok(())
    }

    /// Waits until the slot has reached the end of the log as it is now.
    pub(crate) async fn wait_followed(&mut self) -> Result<()> {
        let sql = self.rig.sql().await?;
        let end: PgLsn = sql.query_one("select pg_current_wal_flush_lsn()", &[]).await?.get(0);
        let reached = |slot: &Slot| slot.confirmed_flush_lsn >= end;
        let waited = Slot::wait(&sql, self.rig.name(), &format!("at {end}"), LIMIT, reached).await;
        let stands = self.rig.slot().await?;
        waited.map(drop).with_context(|| format!("it stands at {}", stands.confirmed_flush_lsn))
    }

    /// Removes what would cost the rows behind.
    async fn clear(&mut self) -> Result<()> {
        self.relays.clear();
        self.writer = None;
        let sql = self.rig.sql().await?;
        eventually("the slots to be dropped", LIMIT, async || {
            let drop_free = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
                              where database = current_database() and not active";
            sql.query(drop_free, &[]).await.context("drop the slots")?;
            let count = "select count(*) from pg_replication_slots where database = current_database()";
            let left: i64 = sql.query_one(count, &[]).await.context("count the slots")?.get(0);
            Ok((left == 0).then_some(()))
        })
        .await?;
        self.rig.queue.delete().await
    }

    fn leave(self) -> Servers {
        let Self { mut servers, resting, .. } = self;
        if let Some(usual) = resting {
            servers.postgres = usual;
        }
        servers
    }

    fn logs(&self) -> String {
        let [of_relays, of_servers] = LOG_LINES;
        let relays = self.relays.iter().enumerate();
        let relays =
            relays.map(|(number, relay)| end_of(&format!("relay {number}"), &relay.log_text(), of_relays));
        let postgres = end_of("Postgres", &self.servers.postgres.log(), of_servers);
        let rabbitmq = end_of("RabbitMQ", &self.servers.rabbitmq.log(), of_servers);
        relays.chain([postgres, rabbitmq]).collect()
    }
}

fn end_of(whose: &str, log: &str, count: usize) -> String {
    let lines: Vec<_> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(count)..];
    format!("--- log of {whose}\n{}\n", shown.join("\n"))
}
