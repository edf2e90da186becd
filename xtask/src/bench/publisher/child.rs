//! The bare publisher's process, from outside.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::relay::Usage;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{self, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::bench::rig::Rig;
use crate::bench::steady::Steady;

const LIMIT: Duration = Duration::from_secs(1800);

/// A bare publisher that waits for the word to go.
pub(in crate::bench) struct Child {
    process: process::Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts one that has read the outbox of `database`, and is connected.
    pub(in crate::bench) async fn start(rig: &Rig, database: &str, steady: Option<Steady>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.arg("bench-publisher");
        command.arg("--postgres").arg(rig.pair.postgres.admin_url(database));
        command.arg("--rabbitmq").arg(rig.pair.rabbitmq.guest_url());
        if let Some(Steady { rate, seconds }) = steady {
            command.args([format!("--rate={rate}"), format!("--seconds={seconds}")]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().context("start the bare publisher")?;
        let stdin = process.stdin.take().context("speak to the bare publisher")?;
        let stdout = process.stdout.take().context("listen to the bare publisher")?;
        let mut child = Self { process, stdin, lines: BufReader::new(stdout).lines() };
        let line = child.line().await?;
        ensure!(line == "ready", "prepare the bare publisher: it said {line:?}");
        Ok(child)
    }

    /// Lets it publish.
    pub(in crate::bench) async fn go(&mut self) -> Result<()> {
        self.stdin.write_all(b"go\n").await.context("give the word to go")
    }

    /// Waits until all its messages are confirmed; returns what it has to say.
    pub(in crate::bench) async fn done(&mut self) -> Result<String> {
        self.line().await
    }

    /// What it has used of the machine.
    pub(in crate::bench) fn usage(&self) -> Result<Usage> {
        Usage::of(self.process.id().context("find the bare publisher: it has ended")?)
    }

    /// Lets it end.
    pub(in crate::bench) async fn end(mut self) -> Result<()> {
        drop(self.stdin);
        let exit = timeout(LIMIT, self.process.wait()).await.context("end the bare publisher in time")??;
        ensure!(exit.success(), "end the bare publisher: {exit}");
        Ok(())
    }

    async fn line(&mut self) -> Result<String> {
        let line =
            timeout(LIMIT, self.lines.next_line()).await.context("hear of the bare publisher in time")?;
        line.context("listen to the bare publisher")?.context("listen to the bare publisher: it has ended")
    }
}
