//! What the demo needs before events can flow: servers, the binary, the database objects, three roles, a queue.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use testenv::compose::Compose;
use testenv::consumer::{Queue, QueueKind};
use testenv::install::Servers;
use testenv::relay::Program;
use testenv::writer::create_shop;
use testenv::{Addresses, Pair, PostgresOptions, RabbitMqOptions, Sql};

/// The default names, as a user of the defaults meets them.
pub(super) const SLOT: &str = "postrider";
const EXCHANGE: &str = "postrider";
const DATABASE: &str = "shop";

/// The shop's own role: it owns nothing, and may write events.
const SHOP_ROLE: &str = "
    create role shop login password 'shop' in role postrider_writer;
    grant usage on schema shop to shop;
    grant select, insert, update on all tables in schema shop to shop;
    grant usage on all sequences in schema shop to shop;
    alter role postrider_relay password 'relay';
";

/// Everything that stands before the first event. Dropping it ends the servers.
pub(super) struct Stage {
    pub(super) program: Program,
    pub(super) queue: Queue,
    pub(super) shop_url: String,
    admin_url: String,
    // Last, so that whatever uses them is gone before.
    _servers: Running,
}

enum Running {
    Installed { _pair: Box<Pair> },
    Compose { _project: Compose },
}

impl Stage {
    /// Starts the servers, and does what a user does once: `postrider init`, roles, a queue.
    pub(super) async fn set(root: &Path, binary: &Path, servers: Servers) -> Result<Self> {
        eprintln!("servers: starting a private Postgres and a private RabbitMQ");
        let (servers, addresses) = match servers {
            Servers::Installed => {
                let pair = Pair::start(PostgresOptions::default(), RabbitMqOptions::default()).await?;
                let addresses = pair.addresses();
                (Running::Installed { _pair: Box::new(pair) }, addresses)
            }
            Servers::Compose => {
                let project = Compose::up()?;
                let addresses = project.addresses();
                (Running::Compose { _project: project }, addresses)
            }
        };
        let sql = Sql::connect(&addresses.admin_url("postgres")).await?;
        sql.batch_execute(&format!("create database {DATABASE}"))
            .await
            .context("create the shop's database")?;
        let amqp_url = addresses.amqp_url("guest", "guest", "/");
        let queue = Queue::bound(&amqp_url, "orders", QueueKind::Quorum, EXCHANGE).await?;
        let stage = Self {
            program: Program::new(binary)
                .set("postgres.url", url(&addresses, "postrider_relay", "relay"))
                .set("rabbitmq.url", &amqp_url),
            queue,
            shop_url: url(&addresses, "shop", "shop"),
            admin_url: addresses.admin_url(DATABASE),
            _servers: servers,
        };
        stage.furnish(root).await?;
        Ok(stage)
    }

    async fn furnish(&self, root: &Path) -> Result<()> {
        let init = self.program.clone().set("postgres.url", &self.admin_url).expect(&["init"]).await?;
        for line in init.lines() {
            eprintln!("postrider init: {line}");
        }
        let roles = std::fs::read_to_string(root.join("sql/roles.sql")).context("read sql/roles.sql")?;
        let sql = self.admin().await?;
        sql.batch_execute(&roles).await.context("run sql/roles.sql")?;
        create_shop(&sql).await?;
        sql.batch_execute(SHOP_ROLE).await.context("create the shop's role")
    }

    /// A superuser's connection to the shop's database.
    pub(super) async fn admin(&self) -> Result<Sql> {
        Sql::connect(&self.admin_url).await
    }
}

fn url(addresses: &Addresses, user: &str, password: &str) -> String {
    format!("postgres://{user}:{password}@127.0.0.1:{}/{DATABASE}", addresses.postgres_port)
}

/// Builds the relay in the profile that this program was built in; it then stands beside this program.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let folder = own.parent().context("find this program's folder")?;
    let mut cargo = crate::cargo();
    cargo.args(["build", "--quiet", "--package", "postrider"]).current_dir(root);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    ensure!(cargo.status().context("start cargo")?.success(), "build the relay");
    let binary = folder.join("postrider");
    ensure!(binary.is_file(), "find the relay at {}", binary.display());
    Ok(binary)
}
