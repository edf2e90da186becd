//! Everything around a relay that a test needs: the database objects by `postrider init`, the relay's own role, a
//! shop, a queue that is bound, and the program configured for all of it.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::consumer::{Consumer, Queue, QueueKind};
use crate::oracle::{Slot, Truth, Verdict, judge};
use crate::relay::Program;
use crate::scope::Scope;
use crate::sql::Sql;
use crate::writer::{Backlog, Load, Writer, create_shop};

const ROLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/roles.sql");
const RELAY_ROLE: &str = "postrider_relay";
const RELAY_PASSWORD: &str = "relay-secret";

/// A test's own slot, publication, exchange and queue, all called like its scope, and the program that uses them.
#[derive(Clone, Debug)]
pub struct Rig {
    /// The database and the broker.
    pub scope: Scope,
    /// The binary as the relay's own role: for `run`.
    pub program: Program,
    /// The binary as the superuser: for `init`, `slot` and the like.
    pub admin: Program,
    /// Where the events go: bound to the exchange for every routing key.
    pub queue: Queue,
}

impl Rig {
    /// Does all of it, with a quorum queue.
    pub async fn new(scope: Scope, binary: impl AsRef<Path>) -> Result<Self> {
        let queue = Queue::bound(&scope.amqp_url(), scope.name(), QueueKind::Quorum, scope.name()).await?;
        let rig = Self::without_objects(scope, binary, queue);
        rig.admin.expect(&["init"]).await?;
        rig.grant().await?;
        let sql = rig.sql().await?;
        create_shop(&sql).await?;
        Ok(rig)
    }

    /// Only the configuration: no database object is created, the relay's role may not exist.
    pub fn without_objects(scope: Scope, binary: impl AsRef<Path>, queue: Queue) -> Self {
        let admin = Program::new(binary)
            .set("postgres.url", scope.admin_url())
            .set("postgres.slot", scope.name())
            .set("postgres.publication", scope.name())
            .set("rabbitmq.url", scope.amqp_url())
            .set("rabbitmq.exchange", scope.name());
        let program = admin.clone().set("postgres.url", scope.postgres_url(RELAY_ROLE, RELAY_PASSWORD));
        Self { scope, program, admin, queue }
    }

    /// Runs `roles.sql` and gives the relay's role its password.
    pub async fn grant(&self) -> Result<()> {
        let roles = std::fs::read_to_string(ROLES).context("read sql/roles.sql")?;
        // Roles belong to all databases of a server, advisory locks to one: tests that share a server take turns there.
        let turn = Sql::connect(&self.scope.addresses().admin_url("postgres")).await?;
        turn.batch_execute("select pg_advisory_lock(7205)").await.context("wait to create roles")?;
        let sql = self.sql().await?;
        sql.batch_execute(&roles).await.context("run sql/roles.sql")?;
        let password = format!("alter role {RELAY_ROLE} password '{RELAY_PASSWORD}'");
        sql.batch_execute(&password).await.context("set the relay's password")
    }

    /// The relay's URL of the database, for a link to lead through.
    pub fn relay_url(&self) -> String {
        self.scope.postgres_url(RELAY_ROLE, RELAY_PASSWORD)
    }

    /// A superuser's connection.
    pub async fn sql(&self) -> Result<Sql> {
        self.scope.connect().await
    }

    /// The name of slot, publication and exchange.
    pub fn name(&self) -> &str {
        self.scope.name()
    }

    /// Starts writers in the shop.
    pub fn write(&self, load: &Load) -> Writer {
        Writer::start(&self.scope.admin_url(), load)
    }

    /// Writes a backlog in the shop.
    pub async fn write_backlog(&self, backlog: &Backlog) -> Result<()> {
        backlog.write(&self.scope.admin_url()).await
    }

    /// What is committed, by the shop's ledger.
    pub async fn truth(&self) -> Result<Truth> {
        let sql = self.sql().await?;
        Truth::of_ledger(&sql).await
    }

    /// Where the slot stands.
    pub async fn slot(&self) -> Result<Slot> {
        let sql = self.sql().await?;
        Slot::read(&sql, self.name()).await?.context("find the relay's slot")
    }

    /// Marks in the queue where the slot stands, before a fault, or after a crash once the slot is free.
    pub async fn mark(&self) -> Result<()> {
        self.queue.mark(self.slot().await?.confirmed_flush_lsn).await
    }

    /// The usual end: everything that is committed arrives within `limit`, and the oracle finds nothing wrong.
    pub async fn expect_clean(&self, consumer: Consumer, limit: std::time::Duration) -> Result<Verdict> {
        let truth = self.truth().await?;
        let verdict = judge(&truth, &consumer.finish(&truth, limit).await?, &[]);
        verdict.expect_clean()?;
        Ok(verdict)
    }
}
