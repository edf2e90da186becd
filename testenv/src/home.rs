//! A server's own folder: data, logs, sockets, certificates. It goes when the server goes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::account::Account;
use crate::guard::Guard;
use crate::seed;

/// A fresh temporary folder that belongs to the server's user, with the guard that removes it.
#[derive(Debug)]
pub(crate) struct Home {
    folder: PathBuf,
    pub(crate) account: Account,
    pub(crate) guard: Guard,
}

impl Home {
    /// Makes a folder for the server called `kind`, which runs as `account`.
    pub(crate) fn create(kind: &str, account: Account) -> Result<Self> {
        let name = format!("postrider-{kind}-{}-{:016x}", std::process::id(), seed::random());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let guard = Guard::start(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))
            .context("open the server's folder")?;
        account.own(&folder)?;
        Ok(Self { folder, account, guard })
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file that the server's user owns and nobody else reads.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("protect {}", path.display()))?;
        self.account.own(&path)?;
        Ok(path)
    }

    /// Makes a folder inside that the server's user owns.
    pub(crate) fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        self.account.own(&path)?;
        Ok(path)
    }
}

/// The end of a log, for an error message.
pub(crate) fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
