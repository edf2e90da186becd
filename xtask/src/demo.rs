//! `cargo xtask demo`.

use anyhow::{Result, bail};

/// How to show it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave everything running at the end, and say where
    #[arg(long)]
    pub(crate) keep: bool,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    tokio::task::yield_now().await;
    bail!("show anything (keep: {}): this file is being written", arguments.keep)
}
