//! A session's clock, which stands still while the broker is blocked: its silence is then no fault.

use std::time::Duration;

use tokio::time::Instant;

/// Time since the session began, without the time it was blocked.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    stood: Duration,
    stopped: Option<Instant>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), stood: Duration::ZERO, stopped: None }
    }

    pub(crate) fn now(&self) -> Duration {
        let now = self.stopped.unwrap_or_else(Instant::now);
        now.duration_since(self.started).saturating_sub(self.stood)
    }

    pub(crate) fn stop(&mut self) {
        self.stopped.get_or_insert_with(Instant::now);
    }

    pub(crate) fn go_on(&mut self) {
        if let Some(since) = self.stopped.take() {
            self.stood += since.elapsed();
        }
    }

    pub(crate) fn stands_still(&self) -> bool {
        self.stopped.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blocked_time_does_not_count() {
        let second = Duration::from_secs(1);
        let mut clock = Clock::start();
        tokio::time::advance(second).await;
        clock.stop();
        clock.stop();
        tokio::time::advance(100 * second).await;
        assert_eq!(clock.now(), second);
        clock.go_on();
        clock.go_on();
        tokio::time::advance(second).await;
        assert_eq!(clock.now(), 2 * second);
    }
}
