//! Ports that stay ours while a server is down.
//!
//! They lie below the range that the kernel gives to outgoing connections: else a client that keeps trying a
//! port nobody listens on can be given that very port as its own, and connect to itself. RabbitMQ's tools listen
//! on 35672 to 35682, also outside this range.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::ops::RangeInclusive;

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

use crate::seed;

const RANGE: RangeInclusive<u16> = 20_000..=31_999;
const TRIES: usize = 1_000;

/// A port of 127.0.0.1 that no other test process takes while this lives.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// The lock goes with the process, however that ends.
    _claim: Flock<File>,
}

impl Port {
    /// Claims a free port.
    pub(crate) fn free() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-ports-{}", Uid::effective()));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut choice = Rng::with_seed(seed::random());
        for _ in 0..TRIES {
            let number = choice.u16(RANGE);
            let path = folder.join(number.to_string());
            let file = OpenOptions::new().create(true).append(true).open(&path);
            let file = file.with_context(|| format!("open {}", path.display()))?;
            let Ok(claim) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        bail!("find a free port between {} and {}", RANGE.start(), RANGE.end());
    }

    /// The number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
