//! `cargo xtask fuzz`: gives damaged recordings of a real Postgres to the relay for as long as wanted.
//!
//! The inputs are drawn, run and judged by the test `fuzz` of the core, which also runs a few thousand of them
//! wherever the tests run.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::cargo;

/// How long, and from which seed on.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long to go on
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first seed; every input has the next one
    #[arg(long, conflicts_with = "only")]
    seed: Option<u64>,
    /// Replays the input of this seed alone
    #[arg(long, value_name = "SEED")]
    only: Option<u64>,
}

/// Runs the core's test under these settings.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let mut command = cargo();
    command
        .args(["test", "--quiet", "--package", "postrider-relay", "--test", "fuzz", "--", "--nocapture"])
        .current_dir(root);
    if let Some(seed) = arguments.only {
        command.env("FUZZ_SEED", seed.to_string());
    } else {
        // Another run tries other inputs; what it prints replays.
        let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 48));
        println!("fuzz: {} s from seed {seed} on", arguments.seconds);
        command.env("FUZZ_SECONDS", arguments.seconds.to_string()).env("FUZZ_FROM", seed.to_string());
    }
    ensure!(
        command.status().context("start cargo")?.success(),
        "read every damaged stream: `cargo xtask fuzz --only SEED` replays the seed above"
    );
    Ok(())
}
