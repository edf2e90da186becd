//! A relay whose log is searched for what may not stand there, and commands likewise.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testenv::relay::{Output, Program, Relay};

use crate::stage::{LIMIT, MARKER};

/// The passwords of the testenv's roles and of this ring's, and the mark of a payload.
const SECRETS: [&str; 5] = ["relay-secret", "superuser-secret", "wr0ng-secret", "br0ker-secret", MARKER];

/// The mark as a list of bytes is printed.
const MARKER_BYTES: &str = "112, 52, 121, 108, 48, 52, 100";

/// A running relay; its end looks through its log.
pub(crate) struct Run(Relay);

impl Run {
    /// Starts it; it need not be ready when this returns.
    pub(crate) fn start(program: &Program) -> Result<Self> {
        program.run().map(Run)
    }

    /// It ends by itself with this exit code; returns its log. The contract says within five seconds; on a busy
    /// machine only the printed time is held against that.
    pub(crate) async fn expect_end(&mut self, code: i32) -> Result<String> {
        let started = Instant::now();
        let exit = self.wait_exit(LIMIT).await?;
        let log = self.log_text();
        println!("ended with {exit} {:?} after the wait began", started.elapsed());
        ensure!(exit.code() == Some(code), "expect exit code {code}, not {exit}; the log:\n{log}");
        Ok(log)
    }

    /// SIGTERM ends it with exit code 0.
    pub(crate) async fn expect_drain(&mut self) -> Result<()> {
        let exit = self.terminate(LIMIT).await?;
        ensure!(exit.code() == Some(0), "drain: {exit}; the log:\n{}", self.log_text());
        Ok(())
    }

    /// So many of the lines so far contain `text`.
    pub(crate) fn count_lines(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.contains(text)).count()
    }

    /// Waits until the sum of a metric's series with these labels is this number.
    pub(crate) async fn wait_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Result<()> {
        let mut last = None;
        let waited = testenv::eventually(format!("{name} {labels:?} to be {value}"), LIMIT, async || {
            let sum = self.metrics().await?.sum(name, labels)?;
            last = Some(sum);
            Ok(((sum - value).abs() < 1e-9).then_some(()))
        });
        waited.await.with_context(|| format!("it is {last:?}; the log:\n{}", self.log_text()))
    }
}

impl Deref for Run {
    type Target = Relay;

    fn deref(&self) -> &Relay {
        &self.0
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut Relay {
        &mut self.0
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A test that fails says why itself.
        if !std::thread::panicking() {
            self.log().iter().for_each(|line| expect_clean(line));
        }
    }
}

/// Runs a command to its end; what it prints is clean.
pub(crate) async fn command(program: &Program, words: &str) -> Result<Output> {
    let output = program.output(&words.split_whitespace().collect::<Vec<_>>()).await?;
    expect_clean(&output.stdout);
    expect_clean(&output.stderr);
    Ok(output)
}

/// A command that ends with this exit code; returns what it printed to stdout and what to stderr.
pub(crate) async fn expect(program: &Program, words: &str, code: i32) -> Result<(String, String)> {
    let output = command(program, words).await?;
    ensure!(output.code == Some(code), "run postrider {words}: expect exit code {code}: {output}");
    Ok((output.stdout, output.stderr))
}

/// No part of a payload and no password.
pub(crate) fn expect_clean(text: &str) {
    for secret in SECRETS.into_iter().chain([MARKER_BYTES]) {
        assert!(!text.contains(secret), "{secret:?} was printed: {text}");
    }
}

/// A pause in which nothing should happen, for looking afterwards that it did not.
pub(crate) async fn let_pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}
