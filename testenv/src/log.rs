//! What a program writes, collected while it runs.

use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

const END_LIMIT: Duration = Duration::from_secs(10);

/// The lines so far, and the tasks that read them.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Arc<Lines>,
    readers: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Lines {
    read: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl Log {
    pub(crate) fn follow(child: &mut Child) -> Result<Self> {
        let stdout = child.stdout.take().context("read its stdout")?;
        let stderr = child.stderr.take().context("read its stderr")?;
        let lines = Arc::new(Lines::default());
        let mut readers = JoinSet::new();
        readers.spawn(read(ChildStdout::from_std(stdout)?, Arc::clone(&lines)));
        readers.spawn(read(ChildStderr::from_std(stderr)?, Arc::clone(&lines)));
        Ok(Self { lines, readers })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line behind the first `seen` that is `right`.
    pub(crate) async fn wait(
        &self,
        seen: usize,
        limit: Duration,
        right: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let end = Instant::now() + limit;
        let mut count = self.lines.count.subscribe();
        loop {
            count.mark_unchanged();
            if let Some(line) = self.lines().into_iter().skip(seen).find(|line| right(line)) {
                return Ok(line);
            }
            if timeout_at(end, count.changed()).await.is_err() {
                bail!("find the line within {limit:?}; the log:\n{}", self.lines().join("\n"));
            }
        }
    }

    /// Waits until all that an ended process has written is read.
    pub(crate) async fn end(&mut self) -> Result<()> {
        while let Some(ended) = timeout(END_LIMIT, self.readers.join_next()).await.context("read the log")? {
            ended.context("read the log")?;
        }
        Ok(())
    }
}

async fn read(pipe: impl AsyncRead + Unpin, lines: Arc<Lines>) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    // An error is the end as well: the process is gone.
    while let Ok(1..) = pipe.read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        lines.read.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        lines.count.send_modify(|count| *count += 1);
        line.clear();
    }
}
