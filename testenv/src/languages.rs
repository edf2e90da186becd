//! The interpreters that programs in other languages need, with their libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::binaries;
use crate::lock::Lock;

/// Debian's interpreter before PATH's: the modules that its packages install are no other's.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];
const PYTHON_MODULES: [&str; 2] = ["psycopg", "pika"];
/// Beside what npm has installed: the lock file that it was installed from.
const INSTALLED_FROM: &str = "node_modules/.installed-from.json";

/// A Python that has the modules psycopg and pika.
///
/// # Errors
/// How to get it, where there is none.
pub fn python() -> Result<PathBuf> {
    let import = format!("import {}", PYTHON_MODULES.join(", "));
    let able = |python: &str| {
        let mut command = Command::new(python);
        command.args(["-c", &import]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    match PYTHONS.into_iter().find(|python| able(python)) {
        Some(python) => Ok(PathBuf::from(python)),
        None => bail!(
            "find a python3 with the modules {}: as root on Debian or Ubuntu `cargo xtask install` installs it, \
             elsewhere pip does",
            PYTHON_MODULES.join(" and ")
        ),
    }
}

/// Node.js, once the packages that the lock file in `folder` names are installed beside it. Blocks meanwhile.
///
/// # Errors
/// How to get it, where it is not here; npm's own words, where that could not fetch the packages.
pub fn node(folder: &Path) -> Result<PathBuf> {
    if !binaries::on_path("node") || !binaries::on_path("npm") {
        bail!(
            "find Node.js (18 or later) and npm on PATH: as root on Debian or Ubuntu `cargo xtask install` installs them"
        );
    }
    let wanted = fs::read(folder.join("package-lock.json")).context("read the lock file of npm")?;
    let installed_from = folder.join(INSTALLED_FROM);
    let _only_one_installs = Lock::take("postrider-npm")?;
    if fs::read(&installed_from).ok().as_ref() != Some(&wanted) {
        npm_ci(folder)?;
        fs::write(&installed_from, &wanted).with_context(|| format!("write {}", installed_from.display()))?;
    }
    Ok(PathBuf::from("node"))
}

fn npm_ci(folder: &Path) -> Result<()> {
    eprintln!("+ npm ci (in {})", folder.display());
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(folder).stdin(Stdio::null());
    let done = npm.output().context("start npm")?;
    if !done.status.success() {
        bail!(
            "install the packages of {} by `npm ci`, which needs npm's registry: {}",
            folder.display(),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(())
}

/// The packages, by their names in Debian, of what is not here.
pub(crate) fn missing() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if python().is_err() {
        packages.extend(["python3", "python3-psycopg", "python3-pika"]);
    }
    if !binaries::on_path("node") {
        packages.push("nodejs");
    }
    // Some packages of Node.js hold npm as well.
    if !binaries::on_path("npm") {
        packages.push("npm");
    }
    packages
}
