//! The private servers, as a careful user would run them, and what their processes use of the machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use testenv::consumer::{Queue, QueueKind};
use testenv::relay::{Program, Usage};
use testenv::{Pair, PostgresOptions, RabbitMqOptions, Sql, eventually};
use tokio::time::sleep;
use tokio_postgres::types::PgLsn;

const LIMIT: Duration = Duration::from_secs(60);
const QUEUE: &str = "bench";
/// The default, which the relay publishes to.
pub(super) const EXCHANGE: &str = "postrider";
/// A broker that used no more CPU than this in a second has come to rest.
const AT_REST: Duration = Duration::from_millis(50);

/// Both servers, and the relay's binary.
pub(super) struct Rig {
    pub(super) pair: Pair,
    binary: PathBuf,
    /// Erlang's process, which is the broker.
    broker: u32,
}

impl Rig {
    pub(super) async fn start() -> Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let binary = own.with_file_name("postrider");
        ensure!(binary.is_file(), "find the relay at {}", binary.display());
        let pair = Pair::start(PostgresOptions::default(), RabbitMqOptions::default()).await?;
        let answer = pair.rabbitmq.ctl().run(&["eval", "os:getpid()."]).await?;
        let broker = answer.trim().trim_matches('"').parse();
        let broker = broker.with_context(|| format!("read the broker's process id: {answer:?}"))?;
        Ok(Self { pair, binary, broker })
    }

    /// What the figures were measured on.
    pub(super) async fn machine(&self) -> Result<String> {
        let sql = self.pair.postgres.connect("postgres").await?;
        let postgres: String = sql.query_one("show server_version", &[]).await?.get(0);
        let rabbitmq = self.pair.rabbitmq.ctl().run(&["version"]).await?;
        let cores = std::thread::available_parallelism().context("count the cores")?;
        let load = std::fs::read_to_string("/proc/loadavg").context("read the load")?;
        let load = load.split(' ').next().unwrap_or_default();
        Ok(format!(
            "{cores} cores, load average {load} before; PostgreSQL {postgres}, RabbitMQ {}",
            rabbitmq.trim()
        ))
    }

    /// Creates a database.
    pub(super) async fn database(&self, name: &str) -> Result<Sql> {
        self.pair.postgres.create_database(name).await?;
        self.pair.postgres.connect(name).await
    }

    /// Removes the slots of a database, and then the database.
    pub(super) async fn remove(&self, database: &str) -> Result<()> {
        let sql = self.pair.postgres.connect("postgres").await?;
        sql.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = $1",
            &[&database],
        )
        .await
        .context("drop the slots")?;
        let drop = format!("drop database {database} with (force)");
        sql.batch_execute(&drop).await.context("drop the database")
    }

    /// The relay for one slot of a database, with its default configuration otherwise; the slot is created.
    pub(super) async fn relay(&self, database: &str, slot: &str) -> Result<Program> {
        let program = Program::new(&self.binary)
            .set("postgres.url", self.pair.postgres.admin_url(database))
            .set("rabbitmq.url", self.pair.rabbitmq.guest_url())
            .set("postgres.slot", slot);
        program.expect(&["init"]).await?;
        Ok(program)
    }

    /// An empty queue behind the exchange.
    pub(super) async fn queue(&self, kind: QueueKind) -> Result<Queue> {
        Queue::bound(&self.pair.rabbitmq.guest_url(), QUEUE, kind, EXCHANGE).await
    }

    /// The CPU time that the broker has used so far.
    pub(super) fn broker_cpu(&self) -> Result<Duration> {
        Ok(Usage::of(self.broker)?.cpu)
    }

    /// Waits until the broker has nothing more to do for earlier legs.
    pub(super) async fn rest(&self) -> Result<()> {
        for _ in 0..60 {
            let before = self.broker_cpu()?;
            sleep(Duration::from_secs(1)).await;
            if self.broker_cpu()?.saturating_sub(before) < AT_REST {
                return Ok(());
            }
        }
        bail!("wait for the broker to come to rest: it is busy after a minute");
    }

    /// The process that sends a slot's log, once there is one.
    pub(super) async fn walsender(&self, sql: &Sql, slot: &str) -> Result<u32> {
        let query = "select active_pid from pg_replication_slots where slot_name = $1";
        let pid = eventually("the slot to be read", LIMIT, async || {
            Ok(sql.query_one(query, &[&slot]).await.context("look at the slot")?.get::<_, Option<i32>>(0))
        });
        Ok(pid.await?.cast_unsigned())
    }

    /// Waits until all up to `end` is acknowledged.
    pub(super) async fn acknowledged(&self, sql: &Sql, slot: &str, end: PgLsn) -> Result<()> {
        let query = "select confirmed_flush_lsn >= $2 from pg_replication_slots where slot_name = $1";
        eventually(format!("slot {slot} to be acknowledged to {end}"), LIMIT, async || {
            let reached: bool =
                sql.query_one(query, &[&slot, &end]).await.context("look at the slot")?.get(0);
            Ok(reached.then_some(()))
        })
        .await
    }
}
