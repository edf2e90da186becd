//! `cargo xtask install`: what tests need of this machine, with a person's consent where there is one.

use std::io::{IsTerminal as _, Write as _, stdin};
use std::path::Path;

use anyhow::{Context as _, Result};
use testenv::install::{self, Servers};
use testenv::languages;

/// The client in JavaScript, below the checkout.
const NODE_CLIENT: &str = "crates/inbox/clients/node";

/// Sees to it that there are servers; says where they come from.
pub(crate) fn servers(yes: bool) -> Result<Servers> {
    Ok(said(install::servers(|lines| consent(lines, yes))?))
}

/// The same for all that tests need: servers, and the languages of the inbox's clients.
pub(crate) fn servers_and_languages(root: &Path, yes: bool) -> Result<Servers> {
    let servers = install::servers_and_languages(|lines| consent(lines, yes))?;
    // Those who test a client say themselves what they miss.
    for found in [languages::python(), languages::node(&root.join(NODE_CLIENT))] {
        match found {
            Ok(interpreter) => eprintln!("clients: {}", interpreter.display()),
            Err(missed) => eprintln!("clients: warning: failed to {missed:#}"),
        }
    }
    Ok(said(servers))
}

fn said(servers: Servers) -> Servers {
    match servers {
        Servers::Installed => eprintln!("servers: the programs of this machine"),
        Servers::Compose => {
            eprintln!("servers: Docker Compose, one pair to share; tests that break a server will fail");
        }
    }
    servers
}

/// Asks on a terminal; elsewhere nobody could answer, and a machine that runs tests unattended is there for that.
fn consent(lines: &[String], yes: bool) -> Result<bool> {
    eprintln!("packages are missing; this installs them, and keeps them from starting servers of their own:");
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
