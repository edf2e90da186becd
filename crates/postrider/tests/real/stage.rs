//! Where a test plays: a rig on the shared pair, on PostgreSQL 18, or on a server of its own.

use std::time::Duration;

use anyhow::{Context as _, Result};
use testenv::consumer::{Delivery, Queue, QueueKind};
use testenv::{Addresses, Postgres, PostgresOptions, Rig, Scope, Sql, install};
use tokio::sync::OnceCell;

use crate::run::Run;

/// How long a test waits for what takes a second at most on a machine that is not busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Stands in every payload that a test writes, and must be in no log.
pub(crate) const MARKER: &str = "p4yl04d";

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_postrider");

/// What a test has: a rig, and an administrator's connection.
pub(crate) struct Stage {
    pub(crate) rig: Rig,
    pub(crate) sql: Sql,
}

/// The versions that stops are held against: they differ where a publication is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    /// The system's own.
    Installed,
    V18,
}

impl Stage {
    /// Everything in place on the shared pair.
    pub(crate) async fn new(test: &str) -> Result<Self> {
        Self::on(Scope::shared(test).await?).await
    }

    /// The same on this version.
    pub(crate) async fn of_version(version: Version, test: &str) -> Result<Self> {
        match version {
            Version::Installed => Self::new(test).await,
            Version::V18 => Self::on(Scope::create(postgres_18().await?.clone(), test).await?).await,
        }
    }

    /// The same on this database server and the shared broker.
    pub(crate) async fn on_server(server: &Postgres, test: &str) -> Result<Self> {
        Self::on(Scope::create(with_shared_broker(server).await?, test).await?).await
    }

    async fn on(scope: Scope) -> Result<Self> {
        let rig = quick(Rig::new(scope, BINARY).await?);
        let sql = rig.sql().await?;
        Ok(Self { rig, sql })
    }

    /// A database and a bound queue, and nothing of ours in the database.
    pub(crate) async fn bare(scope: Scope) -> Result<Self> {
        let queue = Queue::bound(&scope.amqp_url(), scope.name(), QueueKind::Classic, scope.name()).await?;
        let rig = quick(Rig::without_objects(scope, BINARY, queue));
        let sql = rig.sql().await?;
        Ok(Self { rig, sql })
    }

    /// The name of slot, publication, exchange and queue.
    pub(crate) fn name(&self) -> &str {
        self.rig.name()
    }

    /// Starts the relay and waits until it is ready.
    pub(crate) async fn ready(&self) -> Result<Run> {
        let mut relay = Run::start(&self.rig.program)?;
        relay.wait_ready(LIMIT).await?;
        Ok(relay)
    }

    /// Runs statements as an administrator.
    pub(crate) async fn execute(&self, statements: &str) -> Result<()> {
        self.sql.batch_execute(statements).await.with_context(|| format!("execute {statements}"))
    }

    /// One value, as text.
    pub(crate) async fn text(&self, query: &str) -> Result<String> {
        let row = self.sql.query_one(query, &[]).await.with_context(|| format!("ask {query}"))?;
        Ok(row.get(0))
    }

    /// Writes an event of an aggregate of its own, alone in its transaction; returns its id.
    pub(crate) async fn write_event(&self) -> Result<String> {
        self.write_event_into("postrider.outbox").await
    }

    /// The same into an outbox of another name.
    pub(crate) async fn write_event_into(&self, table: &str) -> Result<String> {
        self.text(&format!(
            "insert into {table} (aggregate_type, aggregate_id, event_type, payload)
             values ('order', gen_random_uuid(), 'placed', '{{\"note\": \"{MARKER}\"}}') returning id::text"
        ))
        .await
    }

    /// Waits for the message of this id, passing over others.
    pub(crate) async fn wait_message(&self, id: &str) -> Result<Delivery> {
        loop {
            let delivery = self.rig.queue.wait_take(LIMIT).await.with_context(|| format!("wait for {id}"))?;
            if delivery.message_id() == id {
                return Ok(delivery);
            }
        }
    }

    /// Waits for the next message, whatever it is.
    pub(crate) async fn next_message(&self) -> Result<Delivery> {
        self.rig.queue.wait_take(LIMIT).await
    }

    /// Nothing waits in the queue.
    pub(crate) async fn expect_empty_queue(&self) -> Result<()> {
        let left = self.rig.queue.take().await?;
        anyhow::ensure!(left.is_none(), "expect an empty queue: {left:?}");
        Ok(())
    }

    /// The relay runs, delivers an event, and drains when asked.
    pub(crate) async fn expect_delivery(&self) -> Result<()> {
        let mut relay = self.ready().await?;
        let id = self.write_event().await?;
        self.wait_message(&id).await.with_context(|| format!("the log:\n{}", relay.log_text()))?;
        relay.expect_drain().await
    }
}

/// Checks and reports often: a test waits for both.
fn quick(rig: Rig) -> Rig {
    let program = rig.program.clone().set("postgres.report_every_ms", "100");
    Rig { program, ..rig }
}

/// PostgreSQL 18 with the shared broker; it ends with the process.
async fn postgres_18() -> Result<&'static Addresses> {
    static SERVER: OnceCell<(Postgres, Addresses)> = OnceCell::const_new();
    let start = async || {
        let bin = tokio::task::spawn_blocking(install::postgres_18).await.context("find PostgreSQL 18")??;
        let options = PostgresOptions { bin: Some(bin), fsync: false, ..PostgresOptions::default() };
        let server = Postgres::start(options).await?;
        let addresses = with_shared_broker(&server).await?;
        anyhow::Ok((server, addresses))
    };
    SERVER.get_or_try_init(start).await.map(|(_, addresses)| addresses)
}

async fn with_shared_broker(server: &Postgres) -> Result<Addresses> {
    let shared = Scope::shared("broker").await?;
    Ok(Addresses { postgres_port: server.port(), ..shared.addresses().clone() })
}
