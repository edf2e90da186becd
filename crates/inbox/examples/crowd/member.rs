//! One consumer of the crowd, in a process of its own: the loop of `postrider-inbox`, and a ledger.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postrider_inbox::Inbox;
use postrider_inbox::consumer::{Consumer, Event, Handle, HandleError, Settings, Urls};
use tokio::process::{self, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_postgres::Transaction;

const LIMIT: Duration = Duration::from_secs(60);
/// With few of them the whole crowd stays below `max_connections`.
const WORKERS: usize = 2;

struct Ledger;

impl Handle for Ledger {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        let number: i64 = std::str::from_utf8(&event.body)
            .map_err(HandleError::poison)?
            .parse()
            .map_err(|error: std::num::ParseIntError| HandleError::poison(error))?;
        transaction.execute("insert into ledger values ($1)", &[&number]).await?;
        let add = "update account set balance = balance + $1 where id = $2";
        transaction.execute(add, &[&number, &(number % 100)]).await?;
        Ok(())
    }
}

/// Consumes until the standard input ends.
pub(crate) async fn run(database: &str, broker: &str) -> Result<()> {
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        // However it ends, whoever has started this is gone or wants it to end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    let settings = Settings { workers: WORKERS, ..Settings::new(super::QUEUE) };
    let urls = Urls { broker: broker.to_owned(), database: database.to_owned() };
    let consumer = Consumer::new(settings, Inbox::new("ledger"), urls, Ledger);
    consumer.run(async { drop(stopped.await) }).await;
    Ok(())
}

/// Such a process, from outside; dropped, it is killed.
pub(super) struct Member(process::Child);

impl Member {
    pub(super) fn start(database: &str, broker: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["member", database, broker]);
        command.stdin(Stdio::piped()).kill_on_drop(true);
        Ok(Self(command.spawn().context("start a consumer")?))
    }

    /// SIGKILL.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.0.kill().await.context("kill a consumer")
    }

    /// Lets it end.
    pub(super) async fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = timeout(LIMIT, self.0.wait()).await.context("end a consumer in time")?;
        let status = status.context("wait for a consumer")?;
        ensure!(status.success(), "end a consumer: {status}");
        Ok(())
    }
}
