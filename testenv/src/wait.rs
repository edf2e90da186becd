//! Waiting for something to become true, with a limit that is generous and never measured.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How long to sleep between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until `look` yields something.
///
/// # Errors
/// What `look` itself answers, or that `what` did not come within `limit`.
pub async fn eventually<T>(
    what: impl Display,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() >= end {
            bail!("wait for {what}: not within {limit:?}");
        }
        sleep(PAUSE).await;
    }
}
