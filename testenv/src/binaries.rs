//! Where installed programs lie: the folders of Debian and Ubuntu, of the usual tarballs, and PATH.

use std::env;
use std::path::PathBuf;

/// The folder that holds the programs of the newest installed PostgreSQL server.
pub(crate) fn postgres() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = ["/usr/lib/postgresql", "/usr/local/lib/postgresql"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("postgres").is_file())
        .collect();
    versions.sort();
    versions.pop().map(|(_, bin)| bin).or_else(|| {
        let usual = ["/usr/pgsql/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin"].map(PathBuf::from);
        path().chain(usual).find(|bin| bin.join("postgres").is_file() && bin.join("initdb").is_file())
    })
}

/// The folder of RabbitMQ's own scripts: not Debian's wrappers in `/usr/sbin`, which insist on their own user and
/// folders.
pub(crate) fn rabbitmq() -> Option<PathBuf> {
    let usual = [
        "/usr/lib/rabbitmq/bin",
        "/usr/local/lib/rabbitmq/bin",
        "/opt/rabbitmq/sbin",
        "/usr/local/sbin",
        "/opt/homebrew/sbin",
    ]
    .map(PathBuf::from);
    usual.into_iter().chain(path()).find(|bin| bin.join("rabbitmq-server").is_file())
}

/// Erlang's port mapper, which every node needs: on PATH, or inside Erlang's own folder.
pub(crate) fn epmd() -> Option<PathBuf> {
    if let Some(bin) = path().find(|bin| bin.join("epmd").is_file()) {
        return Some(bin.join("epmd"));
    }
    ["/usr/lib/erlang", "/usr/local/lib/erlang"].iter().find_map(|root| {
        let runtimes = std::fs::read_dir(root).ok()?.filter_map(Result::ok);
        runtimes.map(|entry| entry.path().join("bin/epmd")).find(|epmd| epmd.is_file())
    })
}

/// Whether PATH has the program `name`.
pub(crate) fn on_path(name: &str) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path().any(|folder| {
        let found = folder.join(name).metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

fn path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).collect::<Vec<_>>().into_iter()
}
