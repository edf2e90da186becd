//! The processes that a server has started, by Linux's /proc.

use std::fs;

use anyhow::{Context as _, Result};
use nix::unistd::Pid;

/// The direct children of `parent`.
pub(crate) fn of(parent: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")?.filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if stat(pid).is_some_and(|(_, owner)| owner == parent.as_raw()) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Whether a process has ended (one that nobody has waited for yet has ended too).
pub(crate) fn is_gone(pid: Pid) -> bool {
    stat(pid.as_raw()).is_none_or(|(state, _)| state == 'Z')
}

/// Whether a process stands still after a SIGSTOP: it starts no other any more.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    stat(pid.as_raw()).is_some_and(|(state, _)| state == 'T')
}

/// State and parent of a process: proc(5), fields 3 and 4 of `stat`.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
