//! `postrider config`: the configuration as text.

use std::process::ExitCode;

use super::table::say;
use crate::config::{self, Loaded};

/// Prints what holds, secrets masked.
pub(crate) fn config(loaded: &Loaded) -> anyhow::Result<ExitCode> {
    say(&config::effective(loaded))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the commented default file.
pub(crate) fn example() -> anyhow::Result<ExitCode> {
    say(&config::example())?;
    Ok(ExitCode::SUCCESS)
}
