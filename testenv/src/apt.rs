//! Debian's and Ubuntu's packages, installed without letting them start servers of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Uid;

use crate::binaries;

/// Asked by maintainer scripts before they start a service; 101 means no: invoke-rc.d(8).
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Read by postgresql-common before it makes a cluster for a new server package: `pg_createcluster(8)`.
const CLUSTERS: &str = "/etc/postgresql-common/createcluster.d/postrider.conf";

/// Whether packages can be installed here: root, on Debian or a child of it.
pub(crate) fn usable() -> bool {
    Uid::effective().is_root() && Path::new("/etc/debian_version").is_file() && binaries::on_path("apt-get")
}

/// The command lines that [`install`] runs, for people to read.
pub(crate) fn command_lines(packages: &[&str]) -> [String; 2] {
    let install = format!("apt-get install --yes --no-install-recommends {}", packages.join(" "));
    ["apt-get update".to_owned(), install].map(|line| format!("DEBIAN_FRONTEND=noninteractive {line}"))
}

/// Installs packages, said aloud, after fetching the lists.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let [update, install] = command_lines(packages);
    let _policy = Placed::new(POLICY, "#!/bin/sh\nexit 101\n", 0o755)?;
    let _clusters = Placed::new(CLUSTERS, "create_main_cluster = false\n", 0o644)?;
    for line in [update, install] {
        run(&line)?;
    }
    Ok(())
}

fn run(line: &str) -> Result<()> {
    eprintln!("+ {line}");
    // Its chatter goes where ours goes, so that a person sees that something moves.
    let done = Command::new("sh")
        .args(["-c", &format!("{line} >&2")])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {line}"))?;
    if !done.success() {
        bail!("run {line}: {done}");
    }
    Ok(())
}

/// A file that is in place while this lives; what stood there before comes back afterwards.
struct Placed {
    path: PathBuf,
    aside: PathBuf,
    /// A folder that did not exist before.
    folder: Option<PathBuf>,
}

impl Placed {
    fn new(path: &str, text: &str, mode: u32) -> Result<Self> {
        let path = PathBuf::from(path);
        let aside = path.with_extension("before-postrider");
        let parent = path.parent().context("place a file: it has no folder")?;
        let folder = (!parent.exists()).then(|| parent.to_owned());
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        // Where an earlier run was killed, what stood there before is aside already.
        if path.exists() && !aside.exists() {
            fs::rename(&path, &aside).with_context(|| format!("move {} aside", path.display()))?;
        }
        let placed = Self { path, aside, folder };
        let path = &placed.path;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("set the mode of {}", path.display()))?;
        Ok(placed)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let back = if self.aside.exists() {
            fs::rename(&self.aside, &self.path)
        } else {
            fs::remove_file(&self.path)
        };
        if let Err(error) = back {
            eprintln!("failed to restore {}: {error}", self.path.display());
        }
        if let Some(folder) = &self.folder {
            // A package may have put something of its own there.
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_there_comes_back() {
        let folder = std::env::temp_dir().join(format!("postrider-placed-{:016x}", crate::seed::random()));
        let file = folder.join("policy.d");
        let path = file.to_str().expect("a path of letters");
        drop(Placed::new(path, "first", 0o644).expect("a file"));
        assert!(!folder.exists(), "a folder of ours goes");

        fs::create_dir(&folder).expect("a folder");
        fs::write(&file, "before").expect("a file");
        let placed = Placed::new(path, "meanwhile", 0o755).expect("a file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "meanwhile");
        // As after a kill: nothing was restored, and the next run finds both.
        std::mem::forget(placed);
        drop(Placed::new(path, "again", 0o755).expect("a file"));
        assert_eq!(fs::read_to_string(&file).expect("a file"), "before");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1);
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
