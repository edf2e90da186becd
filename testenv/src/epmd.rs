//! Erlang's port mapper: a node registers its port there, and finds the other nodes' by their names.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::TcpStream;

use crate::account::Account;
use crate::home::Home;
use crate::port::Port;
use crate::{binaries, eventually};

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running port mapper of our own. Without it a node or a tool would start one that nobody ends.
#[derive(Debug)]
pub(crate) struct Epmd {
    port: Port,
    process: Child,
    // After the process, so that its guard finds nothing left to end.
    home: Home,
}

impl Epmd {
    /// Starts it for nodes that run as `account`, and waits until it listens.
    pub(crate) async fn start(account: Account) -> Result<Self> {
        let program = binaries::epmd().context("find epmd, which comes with Erlang")?;
        let mut home = Home::create("epmd", account)?;
        let port = Port::free()?;
        let mut command = Command::new(program);
        command
            .current_dir(home.folder())
            .env_clear()
            .env("ERL_EPMD_PORT", port.number().to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        home.account.run(&mut command);
        let process = command.spawn().context("start epmd")?;
        home.guard.watch("KILL", -process.id().cast_signed())?;
        let epmd = Self { port, process, home };
        let number = epmd.port();
        eventually("epmd to listen", START_LIMIT, async || {
            Ok(TcpStream::connect(("127.0.0.1", number)).await.ok().map(drop))
        })
        .await?;
        Ok(epmd)
    }

    /// The port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }
}

impl Drop for Epmd {
    fn drop(&mut self) {
        self.home.guard.release();
        // The guard kills it; without this wait it would stay a zombie that the guard waits for.
        let _ = self.process.wait();
    }
}
