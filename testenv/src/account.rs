//! The unprivileged user that a server runs as when we are root: neither server agrees to run as root.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::unistd::{Uid, User};

/// A user's numbers, or nobody in particular when we are not root and servers run as ourselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account(Option<(u32, u32)>);

impl Account {
    /// The user `name`, or `nobody` where there is no such user; ourselves when we are not root.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self(None));
        }
        for candidate in [name, "nobody"] {
            if let Some(user) =
                User::from_name(candidate).with_context(|| format!("look up user {candidate}"))?
            {
                return Ok(Self(Some((user.uid.as_raw(), user.gid.as_raw()))));
            }
        }
        bail!("find an unprivileged user: neither {name} nor nobody exists");
    }

    /// Lets `command` run as this user.
    pub(crate) fn run(self, command: &mut Command) {
        if let Self(Some((uid, gid))) = self {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives a file or folder to this user.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        if let Self(Some((uid, gid))) = self {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .with_context(|| format!("give {} to user {uid}", path.display()))?;
        }
        Ok(())
    }
}
