//! When silence on the stream means something.

use std::time::Duration;

use tokio::time::Instant;

/// How long nothing has come although we listened, that is, while [`crate::SlotStream::next`] waited.
pub(crate) struct Silence {
    limit: Duration,
    since: Instant,
    listened_until: Instant,
}

/// Without a call of [`crate::SlotStream::next`] for so long, nobody listens: frames wait, and say nothing.
const DEAF_AFTER: Duration = Duration::from_secs(1);

impl Silence {
    pub(crate) fn new(server_limit: Option<Duration>) -> Silence {
        let now = Instant::now();
        Silence { limit: server_limit.unwrap_or(Duration::from_secs(60)), since: now, listened_until: now }
    }

    pub(crate) fn listen(&mut self) -> Listening<'_> {
        if self.listened_until.elapsed() > DEAF_AFTER {
            self.since = Instant::now();
        }
        Listening(self)
    }

    pub(crate) fn so_far(&self) -> Duration {
        if self.listened_until.elapsed() > DEAF_AFTER { Duration::ZERO } else { self.since.elapsed() }
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.so_far() > self.limit
    }
}

/// One call of [`crate::SlotStream::next`], until it ends or is cancelled.
pub(crate) struct Listening<'a>(&'a mut Silence);

impl Listening<'_> {
    pub(crate) fn heard(&mut self) {
        self.0.since = Instant::now();
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listened_until = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn silence_is_time_in_which_we_listened() {
        let mut silence = Silence::new(Some(Duration::from_millis(200)));
        let listening = silence.listen();
        // One long call of next, longer than the pause that makes us deaf.
        sleep(DEAF_AFTER + Duration::from_millis(300)).await;
        drop(listening);
        assert!(silence.so_far() > DEAF_AFTER && silence.is_too_long());
        // Nobody takes frames: the server is not to blame.
        sleep(DEAF_AFTER + Duration::from_millis(100)).await;
        assert!(silence.so_far().is_zero() && !silence.is_too_long());
    }
}
