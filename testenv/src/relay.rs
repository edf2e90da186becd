//! The relay as a child process: started, watched and killed from outside, known only by its command line, its log
//! and its pages.

mod http;
mod program;
mod usage;

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::eventually;
use crate::guard::Guard;
use crate::log::Log;

pub use http::{Metrics, Response};
pub use program::{Output, Program};
pub use usage::Usage;

const LOG_LIMIT: Duration = Duration::from_secs(30);

/// A running `postrider run`. Dropping it kills it, and so does the death of the process that owns it.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    guard: Guard,
    log: Log,
    folder: PathBuf,
}

impl Relay {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An empty folder of its own, gone with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it has written to stdout and stderr so far, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// The log as one text, for messages.
    pub fn log_text(&self) -> String {
        self.log.lines().join("\n")
    }

    /// Waits for a line that contains `text`, from the first line on, and returns it.
    pub async fn wait_log(&self, text: &str, limit: Duration) -> Result<String> {
        self.wait_log_after(0, text, limit).await
    }

    /// The same, looking only behind the first `seen` lines.
    pub async fn wait_log_after(&self, seen: usize, text: &str, limit: Duration) -> Result<String> {
        self.log
            .wait(seen, limit, |line| line.contains(text))
            .await
            .with_context(|| format!("wait to read {text:?}"))
    }

    /// Where its pages are, as the log says it.
    pub async fn http_address(&self) -> Result<String> {
        self.log
            .wait(0, LOG_LIMIT, |line| http::address(line).is_some())
            .await
            .map(|line| http::address(&line).expect("the line was chosen for its address").to_owned())
    }

    /// Fetches one of its pages, such as `/readyz`.
    pub async fn get(&self, path: &str) -> Result<Response> {
        let address = self.http_address().await?;
        http::get(&address, path).await.with_context(|| format!("fetch {path} from the relay"))
    }

    /// `/metrics`, read.
    pub async fn metrics(&self) -> Result<Metrics> {
        let page = self.get("/metrics").await?;
        anyhow::ensure!(page.status == 200, "fetch /metrics: {page:?}");
        Metrics::read(&page.body)
    }

    /// The sum of all series of one metric; 0 is a value, an unknown metric is an error.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        self.metrics().await?.sum(name, &[])
    }

    /// `/status`, read.
    pub async fn status(&self) -> Result<Value> {
        let page = self.get("/status").await?;
        serde_json::from_str(&page.body).with_context(|| format!("read /status: {page:?}"))
    }

    /// Waits until `/readyz` answers 200.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        self.wait_readyz("ready", limit, |page| page.status == 200).await
    }

    /// Waits until `/readyz` answers 503 with this reason.
    pub async fn wait_reason(&mut self, reason: &str, limit: Duration) -> Result<()> {
        self.wait_readyz(reason, limit, |page| {
            let answer: Value = serde_json::from_str(&page.body).unwrap_or_default();
            page.status == 503 && answer["ready"] == false && answer["reason"] == reason
        })
        .await
    }

    async fn wait_readyz(
        &mut self,
        what: &str,
        limit: Duration,
        right: impl Fn(&Response) -> bool,
    ) -> Result<()> {
        let mut last = None;
        let what = format!("/readyz to say {what}");
        let waited = eventually(&what, limit, async || {
            if let Some(status) = self.child.try_wait()? {
                bail!("ask the relay: it has ended with {status}");
            }
            last = Some(self.get("/readyz").await);
            Ok(matches!(&last, Some(Ok(page)) if right(page)).then_some(()))
        });
        let waited = waited.await;
        if waited.is_ok() {
            return Ok(());
        }
        let status = self.get("/status").await.map(|page| page.body);
        waited.with_context(|| {
            format!("the last answer was {last:?}, the status {status:?}; the log:\n{}", self.log_text())
        })
    }

    /// What it has used of the machine.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.pid())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.raw_pid(), signal).with_context(|| format!("send {signal} to the relay"))
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait_exit(Duration::from_secs(10)).await.map(drop)
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait_exit(limit).await
    }

    /// Waits until it has ended by itself; its log is complete then.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let child = &mut self.child;
        let exit = eventually("the relay to end", limit, async || Ok(child.try_wait()?)).await;
        let exit = exit.with_context(|| format!("its log:\n{}", self.log.lines().join("\n")))?;
        self.guard.rest()?;
        self.log.end().await?;
        Ok(exit)
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look after the relay")?.is_none())
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already; either way it is reaped, and the guard must not look for its number again.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.guard.rest();
    }
}
