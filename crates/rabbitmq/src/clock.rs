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
        self.at(Instant::now())
    }

    pub(crate) fn stop(&mut self) {
        self.stop_at(Instant::now());
    }

    pub(crate) fn go_on(&mut self) {
        self.go_on_at(Instant::now());
    }

    pub(crate) fn stands_still(&self) -> bool {
        self.stopped.is_some()
    }

    fn at(&self, now: Instant) -> Duration {
        self.stopped.unwrap_or(now).duration_since(self.started).saturating_sub(self.stood)
    }

    fn stop_at(&mut self, now: Instant) {
        self.stopped.get_or_insert(now);
    }

    fn go_on_at(&mut self, now: Instant) {
        if let Some(since) = self.stopped.take() {
            self.stood += now.duration_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_time_does_not_count() {
        let second = Duration::from_secs(1);
        let mut clock = Clock::start();
        let began = clock.started;
        clock.stop_at(began + second);
        clock.stop_at(began + 2 * second);
        assert_eq!(clock.at(began + 101 * second), second);
        clock.go_on_at(began + 101 * second);
        clock.go_on_at(began + 102 * second);
        assert_eq!(clock.at(began + 102 * second), 2 * second);
    }
}
