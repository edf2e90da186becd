//! The relay binary: reads what is asked, and with which configuration, and does it.

// They panic when the reader is gone: `table::say` and `table::note` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod commands;
mod config;
mod health;
mod http;
mod logs;
mod metrics;
mod notices;
mod peers;
mod quarantine_link;
#[cfg(test)]
mod readme;
mod run;
mod shell;
mod slot_link;
mod status;

use std::process::ExitCode;

use clap::Parser;
use postrider_postgres::Error;

use crate::cli::{Cli, Command};
use crate::config::{ConfigError, Loaded, Sources};

/// Every event is a handful of short texts that one thread makes and another frees: the C library's allocator
/// took a third of the processor's time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before any connection is thought of: both clients take the provider from here.
    let ring = rustls::crypto::ring::default_provider().install_default();
    assert!(ring.is_ok(), "the provider is installed once");

    match start(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            match error.downcast_ref() {
                // It says what, why and the cure.
                Some(Error::Stop(stop)) => commands::note(&format!("postrider: {stop}")),
                Some(Error::Standby { .. } | Error::Outage(_)) | None => {
                    commands::note(&format!("postrider: failed to {error:#}"));
                }
            }
            // What is wrong with the words or the configuration is 2, what failed is 1.
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Command::Config { example: true } = cli.command {
        return commands::example();
    }
    let sources = Sources { file: cli.config, variables: std::env::vars_os().collect(), set: cli.set };
    let loaded = sources.load()?;
    logs::init(&loaded.config.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    // One thread: the shell, the slot stream and the publisher hand events to each other, and a hop between
    // threads costs more than what each does with one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(dispatch(cli.command, loaded))
}

async fn dispatch(command: Command, loaded: Loaded) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run => Box::pin(run::run(loaded.config)).await,
        Command::Config { .. } => commands::config(&loaded),
        Command::Init(init) => commands::init(&loaded.config, &init).await,
        Command::Slot(slot) => commands::slot(&loaded.config, &slot).await,
        Command::Quarantine(quarantine) => commands::quarantine(&loaded.config, &quarantine).await,
        Command::Inbox(inbox) => commands::inbox(&loaded.config, &inbox).await,
        Command::Parked(parked) => commands::parked(&loaded.config, &parked).await,
        Command::Status(output) => commands::status(&loaded.config, output.json).await,
        Command::Doctor(output) => commands::doctor(&loaded.config, output.json).await,
    }
}
