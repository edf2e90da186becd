//! What the inbox costs, on a Postgres of its own with `fsync` on:
//!
//! ```console
//! $ cargo run --release -p postrider-inbox --example cost            # both
//! $ cargo run --release -p postrider-inbox --example cost claim      # beside the bare insert
//! $ cargo run --release -p postrider-inbox --example cost prune      # a million rows, while others claim
//! ```
//!
//! Both end with an error if the inbox was wrong, however fast it was.

mod claim;
mod prune;
mod times;

use anyhow::{Context as _, Result, bail};
use postrider_inbox::INBOX_SQL;
use testenv::{Postgres, PostgresOptions, Sql};

const DATABASE: &str = "cost";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            claim::run().await?;
            prune::run().await
        }
        ["claim"] => claim::run().await,
        ["prune"] => prune::run().await,
        _ => bail!("read the arguments: cost [claim|prune]"),
    }
}

/// A server with an inbox.
struct Place {
    postgres: Postgres,
}

impl Place {
    async fn start() -> Result<Self> {
        let postgres = Postgres::start(PostgresOptions::default()).await?;
        postgres.create_database(DATABASE).await?;
        let place = Self { postgres };
        place.connect().await?.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        Ok(place)
    }

    async fn connect(&self) -> Result<Sql> {
        self.postgres.connect(DATABASE).await
    }
}
