//! `cargo xtask install`: the servers that tests need, with a person's consent where there is one.

use std::io::{IsTerminal as _, Write as _, stdin};

use anyhow::{Context as _, Result};
use testenv::install::{self, Servers};

/// Sees to it that there are servers; says where they come from.
pub(crate) fn servers(yes: bool) -> Result<Servers> {
    let servers = install::servers(|lines| consent(lines, yes))?;
    match servers {
        Servers::Installed => eprintln!("servers: the programs of this machine"),
        Servers::Compose => {
            eprintln!("servers: Docker Compose, one pair to share; tests that break a server will fail");
        }
    }
    Ok(servers)
}

/// Asks on a terminal; elsewhere nobody could answer, and a machine that runs tests unattended is there for that.
fn consent(lines: &[String], yes: bool) -> Result<bool> {
    eprintln!(
        "a server is missing; this installs it, and keeps the packages from starting servers of their own:"
    );
    for line in lines {
        eprintln!("    {line}");
    }
    if yes {
        return Ok(true);
    }
    if !stdin().is_terminal() {
        eprintln!("there is no terminal to ask on: going on");
        return Ok(true);
    }
    eprint!("Install? [y/N] ");
    std::io::stderr().flush().context("ask")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
