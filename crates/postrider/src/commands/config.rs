//! `postrider config`: the configuration as text.

use std::process::ExitCode;

use crate::config::{Loaded, effective};

/// Prints what holds, secrets masked.
pub(crate) fn config(loaded: &Loaded) -> ExitCode {
    print!("{}", effective(loaded));
    ExitCode::SUCCESS
}
