//! How the binary is called: its path, its configuration by environment, its arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

use super::Relay;
use crate::guard::Guard;
use crate::log::Log;
use crate::seed;

const PREFIX: &str = "POSTRIDER_";
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The `postrider` binary and the configuration it gets; nothing of the caller's own `POSTRIDER_*` is passed on.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    environment: BTreeMap<String, OsString>,
    arguments: Vec<OsString>,
}

/// How a command has ended, and what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Program {
    /// The binary at `path`, with its pages on any free port.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let program =
            Self { path: path.as_ref().to_owned(), environment: BTreeMap::new(), arguments: Vec::new() };
        program.set("http.listen", "127.0.0.1:0")
    }

    /// Sets a key such as `postgres.url`, by the environment.
    #[must_use]
    pub fn set(self, key: &str, value: impl Into<OsString>) -> Self {
        let name = format!("{PREFIX}{}", key.replace('.', "_").to_uppercase());
        self.env(&name, value)
    }

    /// Sets an environment variable by its full name.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Adds an argument before the command, such as `--config`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Starts `postrider run`; it need not be ready when this returns.
    pub fn run(&self) -> Result<Relay> {
        let folder = std::env::temp_dir().join(format!("postrider-relay-{:016x}", seed::random()));
        std::fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut guard = Guard::start(&folder)?;
        let mut command = self.command(&["run"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", self.path.display()))?;
        guard.watch("KILL", child.id().cast_signed())?;
        let log = Log::follow(&mut child)?;
        Ok(Relay { child, guard, log, folder })
    }

    /// Runs a command such as `init` or `slot list` to its end, which comes within two minutes.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = tokio::process::Command::from(self.command(arguments));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let what = || format!("run postrider {}", arguments.join(" "));
        let output = timeout(COMMAND_LIMIT, command.output()).await.with_context(what)?.with_context(what)?;
        Ok(Output {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// The same, for commands that have to succeed; returns what it wrote to stdout.
    pub async fn expect(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments).await?;
        if output.code != Some(0) {
            bail!("run postrider {}: {output}", arguments.join(" "));
        }
        Ok(output.stdout)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
                command.env_remove(name);
            }
        }
        command.envs(&self.environment).args(&self.arguments).args(arguments);
        command
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            Some(code) => writeln!(f, "exit code {code}")?,
            None => writeln!(f, "ended by a signal")?,
        }
        write!(f, "{}{}", self.stdout, self.stderr)
    }
}
