//! `cargo xtask slot`: the binary's own command, so that both print the same.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::{Error, Result};

/// Becomes `postrider slot ARGUMENTS`, built from this checkout.
pub(crate) fn run(arguments: &[OsString]) -> Result<()> {
    let mut cargo = crate::cargo();
    cargo.args(["run", "--quiet", "--package", "postrider", "--", "slot"]).args(arguments);
    Err(Error::new(cargo.exec()).context("start cargo"))
}
