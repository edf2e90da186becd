//! A consumer in any language as a child process: started, watched and killed from outside.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::guard::Guard;
use crate::log::Log;
use crate::seed;

/// A running program. Dropping it kills it, and so does the death of the process that owns it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    guard: Guard,
    log: Log,
}

impl Worker {
    /// Starts it in an empty folder of its own.
    pub fn start(mut command: Command) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-worker-{:016x}", seed::random()));
        std::fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut guard = Guard::start(&folder)?;
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {command:?}"))?;
        guard.watch("KILL", child.id().cast_signed())?;
        let log = Log::follow(&mut child)?;
        Ok(Self { child, guard, log })
    }

    /// Waits for a line that contains `text`, from the first line on, and returns it.
    pub async fn wait_log(&self, text: &str, limit: Duration) -> Result<String> {
        let found = self.log.wait(0, limit, |line| line.contains(text)).await;
        found.with_context(|| format!("wait to read {text:?}"))
    }

    /// What it has written, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.end().context("kill the worker")?;
        self.log.end().await
    }

    fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.guard.rest()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already; either way it is reaped, and the guard must not look for its number again.
        let _ = self.end();
    }
}
