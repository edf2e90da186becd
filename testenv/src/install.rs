//! Getting what tests need: what is installed, else packages, else (of servers) containers, else an instruction.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::{apt, binaries, compose, languages, other_version};

/// Where servers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// From programs of this machine.
    Installed,
    /// From Docker Compose: one pair to share; tests that break a server cannot run.
    Compose,
}

/// Sees to it that there are servers; `agree` is asked with the command lines before anything is installed.
///
/// # Errors
/// What to install, where this cannot.
pub fn servers(agree: impl FnOnce(&[String]) -> Result<bool>) -> Result<Servers> {
    if missing().is_empty() {
        return Ok(Servers::Installed);
    }
    if apt::usable() {
        packages(missing, agree)?;
        return Ok(Servers::Installed);
    }
    if compose::usable() {
        return Ok(Servers::Compose);
    }
    bail!(
        "find a server of PostgreSQL (14 or later) and one of RabbitMQ (3.10 or later): missing here: {}. Install them by \
         your system's packages or put their programs on PATH (they need not run), or start Docker with Compose; as root on \
         Debian or Ubuntu this command installs them by itself",
        missing().join(", ")
    );
}

/// The same for all that tests need: servers, and the languages that the inbox's clients are written in. A language
/// that cannot be installed here is missed by the tests that need it, and by no other.
pub fn servers_and_languages(agree: impl FnOnce(&[String]) -> Result<bool>) -> Result<Servers> {
    if !apt::usable() {
        return servers(agree);
    }
    packages(|| [missing(), languages::missing()].concat(), agree)?;
    Ok(Servers::Installed)
}

/// Installs the packages that are missing, if any is.
fn packages(
    missing: impl Fn() -> Vec<&'static str>,
    agree: impl FnOnce(&[String]) -> Result<bool>,
) -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if !agree(&apt::command_lines(&packages))? {
        bail!("install {}: not agreed to", packages.join(" and "));
    }
    apt::install(&packages)?;
    let still = missing();
    if !still.is_empty() {
        bail!("find {}, though the packages were installed", still.join(" and "));
    }
    Ok(())
}

/// The servers' packages, by their names in Debian, whose programs are not here.
fn missing() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if binaries::postgres().is_none() {
        packages.push("postgresql");
    }
    if binaries::rabbitmq().is_none() || binaries::epmd().is_none() {
        packages.push("rabbitmq-server");
    }
    packages
}

/// The programs of PostgreSQL 14, for [`crate::PostgresOptions::bin`]. Blocks while they are fetched, once a machine.
///
/// # Errors
/// What to install, where they can neither be found nor fetched.
pub fn postgres_14() -> Result<PathBuf> {
    other_version::programs(14, "14.23.0-beta.17").context("find PostgreSQL 14")
}

/// The programs of PostgreSQL 18, for [`crate::PostgresOptions::bin`]. Blocks while they are fetched, once a machine.
///
/// # Errors
/// What to install, where they can neither be found nor fetched.
pub fn postgres_18() -> Result<PathBuf> {
    other_version::programs(18, "18.4.0-beta.17").context("find PostgreSQL 18")
}
