//! The private pair that all rows share, one row at a time: booting a broker takes longer than most rows.

use std::ops::{Deref, DerefMut};

use anyhow::Result;
use testenv::{Pair, PostgresOptions, RabbitMqOptions};
use tokio::sync::{Mutex, MutexGuard};

/// Here between two rows; the servers end with this process.
static RESTING: Mutex<Option<Pair>> = Mutex::const_new(None);

/// The pair, until it is given back. A row that fails does not give it back: who knows what it has left behind.
pub(crate) struct Servers {
    // Before the lock: the next row waits until these servers are gone.
    pair: Pair,
    resting: MutexGuard<'static, Option<Pair>>,
}

impl Servers {
    /// Waits for the row before, and starts servers if it left none.
    pub(crate) async fn take() -> Result<Self> {
        let mut resting = RESTING.lock().await;
        let pair = match resting.take() {
            Some(pair) => pair,
            None => Pair::private(PostgresOptions::default(), RabbitMqOptions::default()).await?,
        };
        Ok(Self { pair, resting })
    }

    /// Leaves the servers, both running and unhurt, to the next row.
    pub(crate) fn give_back(self) {
        let Self { pair, mut resting } = self;
        *resting = Some(pair);
    }
}

impl Deref for Servers {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pair
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pair
    }
}
