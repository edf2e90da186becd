//! One process of this machine at a time.

use std::fs::{File, OpenOptions};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

/// Held by one process of this user; it ends with the value.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Waits until no other process has the lock of this name.
    pub(crate) fn take(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{name}-{}.lock", Uid::effective()));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error);
        Ok(Self { _file: file.with_context(|| format!("wait for {}", path.display()))? })
    }
}
