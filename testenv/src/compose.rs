//! The shared pair from Docker Compose, where no servers are installed. It cannot be broken by tests.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::binaries;
use crate::ctl::Ctl;
use crate::scope::Addresses;

const FILE: &str = include_str!("../compose.yaml");

/// A running project of containers. Dropping it removes them with their volumes.
#[derive(Debug)]
pub struct Compose(());

impl Compose {
    /// Starts the containers and waits until both are healthy.
    pub fn up() -> Result<Self> {
        let project = Self(());
        compose(&["up", "--detach", "--wait"])?;
        Ok(project)
    }

    /// Where the servers are: the ports stand in the file.
    pub fn addresses(&self) -> Addresses {
        let ctl = Ctl::container("postrider-test-rabbitmq");
        Addresses { postgres_port: 30_432, rabbitmq_port: 30_672, ctl }
    }
}

impl Drop for Compose {
    fn drop(&mut self) {
        if let Err(error) = compose(&["down", "--volumes"]) {
            eprintln!("failed to {error:#}");
        }
    }
}

/// Whether there is Compose, and an engine that answers it.
pub(crate) fn usable() -> bool {
    let succeeds = |arguments: &[&str]| {
        let done = Command::new("docker").args(arguments).stdin(Stdio::null()).output();
        done.is_ok_and(|done| done.status.success())
    };
    binaries::on_path("docker") && succeeds(&["compose", "version"]) && succeeds(&["info"])
}

fn compose(arguments: &[&str]) -> Result<Output> {
    let line = format!("docker compose {}", arguments.join(" "));
    eprintln!("+ {line}");
    let mut docker = Command::new("docker")
        .args(["compose", "--file", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {line}"))?;
    let mut input = docker.stdin.take().context("reach docker's input")?;
    input.write_all(FILE.as_bytes()).context("hand over the compose file")?;
    drop(input);
    let done = docker.wait_with_output().with_context(|| format!("wait for {line}"))?;
    if !done.status.success() {
        bail!("run {line}: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_the_code_says() {
        let Addresses { postgres_port, rabbitmq_port, .. } =
            std::mem::ManuallyDrop::new(Compose(())).addresses();
        for line in [
            format!("127.0.0.1:{postgres_port}:5432"),
            format!("127.0.0.1:{rabbitmq_port}:5672"),
            format!("POSTGRES_PASSWORD: {}", crate::postgres::SUPERUSER_PASSWORD),
            "container_name: postrider-test-rabbitmq".to_owned(),
        ] {
            assert!(FILE.contains(&line), "{line}");
        }
    }
}
