//! The limit on events per second, as a token bucket that holds a tenth of a second.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Pace {
    per_second: f64,
    tokens: f64,
    at: Duration,
    /// Something was held back by the limit.
    short: bool,
}

impl Pace {
    /// `per_second` of 0 is no limit.
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, tokens: 0.0, at: Duration::ZERO, short: false }
    }

    /// How many of `most` events may go out now.
    pub(crate) fn allowance(&mut self, now: Duration, most: usize) -> usize {
        if self.per_second == 0.0 {
            return most;
        }
        let gained = now.saturating_sub(self.at).as_secs_f64() * self.per_second;
        self.at = now;
        self.tokens = (self.tokens + gained).min((self.per_second / 10.0).max(1.0));
        self.short = self.tokens < 1.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "never negative, capped")]
        let whole = self.tokens as usize;
        whole.min(most)
    }

    pub(crate) fn spend(&mut self, events: usize) {
        if self.per_second > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "a window's events are few")]
            let spent = events as f64;
            self.tokens -= spent;
        }
    }

    /// When the next event may go, if one was held back.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.short.then(|| self.at + Duration::from_secs_f64((1.0 - self.tokens).max(0.0) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_go_in_a_second_and_no_more() {
        let mut pace = Pace::new(1000);
        let mut sent = 0;
        for ms in 0..1000 {
            let n = pace.allowance(Duration::from_millis(ms), 128);
            pace.spend(n);
            sent += n;
        }
        assert!((900..=1100).contains(&sent), "{sent}");
        assert_eq!(Pace::new(0).allowance(Duration::ZERO, 128), 128);
    }

    #[test]
    fn who_is_held_back_is_told_when_to_come_again() {
        let mut pace = Pace::new(10);
        assert_eq!(pace.allowance(Duration::from_secs(1), 5), 1);
        pace.spend(1);
        assert_eq!(pace.allowance(Duration::from_secs(1), 5), 0);
        let again = pace.deadline().unwrap();
        assert_eq!(pace.allowance(again + Duration::from_millis(1), 5), 1);
    }
}
