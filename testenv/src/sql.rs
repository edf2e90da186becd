//! One connection to Postgres for tests: it drives itself and ends with its value.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A plain tokio-postgres client together with the task that moves its bytes.
#[derive(Debug)]
pub struct Sql {
    client: Client,
    /// Aborted on drop.
    _driver: JoinSet<()>,
}

impl Sql {
    /// Connects without TLS, within ten seconds.
    pub async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = timeout(CONNECT_LIMIT, tokio_postgres::connect(url, NoTls))
            .await
            .context("connect to Postgres in time")?
            .context("connect to Postgres")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client's own calls answer with the error.
            let _ = connection.await;
        });
        Ok(Self { client, _driver: driver })
    }
}

impl Deref for Sql {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Sql {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
