//! How to reach the peers; whoever needs TLS writes a [`Connect`] of its own.

use std::fmt;

use lapin::ConnectionProperties;
use lapin::types::LongString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

/// Any error that can go to another thread.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes connections, again and again.
pub trait Connect: Send + Sync + 'static {
    /// A connection to the broker, without auto-recovery.
    fn broker(&self) -> impl Future<Output = Result<lapin::Connection, BoxError>> + Send;

    /// A connection to the database: one for each message that is handled at the same time.
    fn database(&self) -> impl Future<Output = Result<Database, BoxError>> + Send;
}

/// A connection to Postgres with the task that moves its bytes, which ends with it.
pub struct Database {
    pub(super) client: Client,
    /// Aborted on drop.
    _driver: JoinSet<()>,
}

impl Database {
    /// What `tokio_postgres::connect` made.
    pub fn new<S, T>(client: Client, connection: tokio_postgres::Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client's own calls answer with the error.
            let _ = connection.await;
        });
        Self { client, _driver: driver }
    }
}

/// Both peers by URL, without TLS to the database. Not shown, for its passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Urls {
    /// `amqp://user:password@host:port/vhost`, or `amqps`.
    pub broker: String,
    /// `postgres://user:password@host:port/database`.
    pub database: String,
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Urls(***)")
    }
}

impl Connect for Urls {
    async fn broker(&self) -> Result<lapin::Connection, BoxError> {
        let properties =
            ConnectionProperties::default().with_connection_name(LongString::from("postrider-inbox"));
        Ok(lapin::Connection::connect(&self.broker, properties).await?)
    }

    async fn database(&self) -> Result<Database, BoxError> {
        let (client, connection) = tokio_postgres::connect(&self.database, NoTls).await?;
        Ok(Database::new(client, connection))
    }
}
