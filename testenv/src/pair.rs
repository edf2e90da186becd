//! Postgres and RabbitMQ together: one pair that many tests share, or a private one that a test may break.
//!
//! Sharing crosses processes: `cargo xtask test` starts a pair and says in the variable [`SHARED`] where it is. Without
//! that, the first test of a process that asks starts a pair, and its guards end it when the process ends.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use tokio::sync::OnceCell;

use crate::eventually;
use crate::postgres::{Postgres, PostgresOptions};
use crate::rabbitmq::{RabbitMq, RabbitMqOptions};
use crate::scope::{Addresses, Scope};

/// The environment variable with the path of a file that [`Addresses::write`] wrote.
pub const SHARED: &str = "TESTENV_PAIR";

/// All tests of ring `fault` wait for each other, each for some seconds.
const TURN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Both servers. Dropping it ends them and removes what they wrote.
#[derive(Debug)]
pub struct Pair {
    /// The database server.
    pub postgres: Postgres,
    /// The broker.
    pub rabbitmq: RabbitMq,
    // Last, so that the next test starts when these servers are gone.
    _turn: Option<Turn>,
}

impl Pair {
    /// Starts both servers at the same time.
    pub async fn start(postgres: PostgresOptions, rabbitmq: RabbitMqOptions) -> Result<Self> {
        let (postgres, rabbitmq) = tokio::try_join!(Postgres::start(postgres), RabbitMq::start(rabbitmq))?;
        Ok(Self { postgres, rabbitmq, _turn: None })
    }

    /// A pair of one's own for a test of ring `fault`, after waiting for the machine's turn: such tests run one by one,
    /// whatever their process.
    pub async fn private(postgres: PostgresOptions, rabbitmq: RabbitMqOptions) -> Result<Self> {
        let turn = Turn::take().await?;
        Ok(Self { _turn: Some(turn), ..Self::start(postgres, rabbitmq).await? })
    }

    /// A pair that tests which do not break it can share: nothing in it has to survive a power cut.
    pub async fn for_sharing() -> Result<Self> {
        let settings = vec![("max_replication_slots".to_owned(), "512".to_owned())];
        let postgres = PostgresOptions { fsync: false, settings, ..PostgresOptions::default() };
        Self::start(postgres, RabbitMqOptions::default()).await
    }

    /// Where the servers are.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            postgres_port: self.postgres.port(),
            rabbitmq_port: self.rabbitmq.port(),
            ctl: self.rabbitmq.ctl().clone(),
        }
    }

    /// A database and names for a test on this pair.
    pub async fn scope(&self, test: &str) -> Result<Scope> {
        Scope::create(self.addresses(), test).await
    }
}

/// Where the pair is that tests share; the first call of a process may start it.
pub(crate) async fn shared() -> Result<&'static Addresses> {
    static FOUND: OnceCell<Addresses> = OnceCell::const_new();
    // Held until the process ends; then the guards see their pipes close.
    static STARTED: OnceCell<Pair> = OnceCell::const_new();
    let find = async || match std::env::var_os(SHARED) {
        Some(path) => Addresses::read(Path::new(&path)),
        None => Ok(STARTED.get_or_try_init(Pair::for_sharing).await?.addresses()),
    };
    FOUND.get_or_try_init(find).await.context("find the servers that tests share")
}

/// The right to be the only test with private servers on this machine; it ends with its value or its process.
#[derive(Debug)]
pub struct Turn {
    _lock: Flock<File>,
}

impl Turn {
    /// Waits until no other test has its turn.
    pub async fn take() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("postrider-turn-{}", Uid::effective()));
        let lock = eventually("this test's turn", TURN_LIMIT, async || {
            let file =
                OpenOptions::new().create(true).append(true).open(&path).context("open the turn's lock")?;
            Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
        });
        Ok(Self { _lock: lock.await? })
    }
}
