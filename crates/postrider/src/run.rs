//! `postrider run`: everything is set up, the shell turns until it is told to end, everything is closed.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

use crate::config::Config;
use crate::health::Board;
use crate::http;
use crate::metrics::Metrics;
use crate::peers;
use crate::shell::{End, Shell};

/// Runs the relay until SIGTERM or SIGINT, or until something that only a person can mend.
pub(crate) async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let server = peers::server(&config)?;
    let subject = peers::subject(&config)?;
    let publisher = peers::publisher(&config)?;
    let relay = peers::relay(&config)?;
    let signals = Signals::listen().context("listen for signals")?;
    let board = Arc::new(Board::new());
    let metrics = Arc::new(Metrics::new(&config.postgres.slot));
    // Before the slot is touched: a port in use is most likely another relay, or a wrong configuration.
    let pages = http::listen(&config, Arc::clone(&board), Arc::clone(&metrics)).await?;

    info!(
        slot = config.postgres.slot,
        postgres = server.redacted(),
        exchange = config.rabbitmq.exchange,
        "postrider {} starts",
        env!("CARGO_PKG_VERSION")
    );
    let shell = Shell::new(&config, server, subject, publisher, relay, board, metrics);
    let end = Box::pin(shell.run(signals)).await;
    drop(pages);
    Ok(match end {
        End::Drained { repeat: 0 } => {
            info!("drained: everything that was delivered is reported");
            ExitCode::SUCCESS
        }
        End::Drained { repeat } => {
            info!(events = repeat, "ended: so many events that were delivered may arrive again");
            ExitCode::SUCCESS
        }
        End::Stopped(stop) => {
            error!("{stop}");
            ExitCode::FAILURE
        }
    })
}

/// SIGTERM and SIGINT, the first to drain, the second to end at once.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next of them, by name. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The exit code of a relay that is told twice to end.
pub(crate) const EXIT_AT_ONCE: i32 = 130;

/// The share of the drain timeout that closing the connections may take.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_millis(1500);
