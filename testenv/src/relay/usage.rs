//! What a process has used of the machine, by Linux's /proc (the proc(5) manual page).

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// A clock tick of /proc, which is a hundredth of a second on every Linux that Postgres runs on.
const TICK: Duration = Duration::from_millis(10);

/// What a process has used so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all its threads, in user and kernel mode.
    pub cpu: Duration,
    /// Resident memory now, in bytes.
    pub rss_bytes: u64,
    /// Resident memory at its highest, in bytes.
    pub peak_rss_bytes: u64,
}

impl Usage {
    /// Reads it for any process.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |name| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let (stat, status) = (read("stat")?, read("status")?);
        Self::parse(&stat, &status).with_context(|| format!("read what process {pid} uses"))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        // The name before may hold spaces and brackets; utime and stime are fields 14 and 15.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: Vec<u32> =
            fields.split_whitespace().skip(11).take(2).map_while(|f| f.parse().ok()).collect();
        let [user, system] = ticks[..] else { return None };
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
        };
        Some(Self {
            cpu: TICK * (user + system),
            rss_bytes: bytes("VmRSS:")?,
            peak_rss_bytes: bytes("VmHWM:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_use_can_be_read() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 0 && usage.peak_rss_bytes >= usage.rss_bytes, "{usage:?}");
    }

    #[test]
    fn a_name_with_brackets_is_no_trouble() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 100 1 1";
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let expected = Usage { cpu: Duration::from_secs(3), rss_bytes: 1 << 20, peak_rss_bytes: 2 << 20 };
        assert_eq!(Usage::parse(stat, status), Some(expected));
    }
}
