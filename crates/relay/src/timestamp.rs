//! Reads `occurred_at` as Postgres prints it with `DateStyle=ISO`, and prints it for AMQP.

use std::fmt::Write as _;
use std::str::FromStr;

/// A moment, or no moment at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timestamp {
    /// `infinity` or `-infinity`.
    Infinite,
    /// Postgres' whole range, 4714 BC to 294276 AD: more microseconds than fit 64 bits.
    At {
        /// Whole seconds since the Unix epoch, rounded down.
        unix_s: i64,
        /// Microseconds of the second.
        micros: u32,
    },
}

const DAY_S: i64 = 86_400;

impl Timestamp {
    /// Reads `2026-11-29 20:11:38.123456+00`, with any offset, and also without time, fraction or
    /// offset (UTC then), as the types `timestamp` and `date` are printed.
    fn parse(text: &str) -> Option<Timestamp> {
        if matches!(text, "infinity" | "-infinity") {
            return Some(Timestamp::Infinite);
        }
        let (text, before_christ) = match text.strip_suffix(" BC") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let mut digits = Digits { rest: text.as_bytes() };
        // There is no year 0: 1 BC comes before 1 AD.
        let year = digits.number(4..=6).filter(|&year| year > 0)?;
        let month = digits.after(b'-')?;
        let day = digits.after(b'-')?;
        let year = if before_christ { 1 - year } else { year };
        let days = days_since_epoch(year, month, day);
        if date_of(days) != (year, month, day) {
            return None;
        }
        let (second_of_day, micros) = digits.time()?;
        let unix_s = days * DAY_S + second_of_day - digits.offset()?;
        digits.rest.is_empty().then_some(Timestamp::At { unix_s, micros })
    }

    /// Whole seconds since the Unix epoch: what an AMQP timestamp can carry.
    pub(crate) fn amqp(self) -> Option<u64> {
        match self {
            Timestamp::Infinite => None,
            Timestamp::At { unix_s, .. } => unix_s.try_into().ok(),
        }
    }

    /// RFC 3339 in UTC with microseconds, which has the years 1 to 9999.
    pub(crate) fn rfc3339(self) -> Option<String> {
        let Timestamp::At { unix_s, micros } = self else { return None };
        let (year, month, day) = date_of(unix_s.div_euclid(DAY_S));
        if !(1..=9999).contains(&year) {
            return None;
        }
        let second = unix_s.rem_euclid(DAY_S);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let mut text = String::with_capacity("2026-11-29T20:11:38.123456Z".len());
        write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z").ok()?;
        Some(text)
    }
}

/// Seconds since the Unix epoch as RFC 3339 in UTC, which has the years 1 to 9999.
pub fn rfc3339(unix_s: i64) -> Option<String> {
    Timestamp::At { unix_s, micros: 0 }.rfc3339()
}

/// The text is not what Postgres prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoTimestamp;

impl FromStr for Timestamp {
    type Err = NoTimestamp;

    fn from_str(text: &str) -> Result<Self, NoTimestamp> {
        Timestamp::parse(text).ok_or(NoTimestamp)
    }
}

/// The year counted from 1 March, so that the leap day is its last and 400 years always have
/// 146,097 days. Day 0 is 1970-01-01; 0000-03-01 lies 719,468 days before it.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (cycle, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    cycle * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468
}

/// The inverse of [`days_since_epoch`]: year, month and day.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (cycle * 400 + year, month, day)
}

/// What is left of the text.
struct Digits<'a> {
    rest: &'a [u8],
}

impl Digits<'_> {
    /// A number of so many digits, and no more.
    fn number(&mut self, digits: std::ops::RangeInclusive<usize>) -> Option<i64> {
        let count = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if !digits.contains(&count) {
            return None;
        }
        let (number, rest) = self.rest.split_at(count);
        self.rest = rest;
        Some(number.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
    }

    fn skip(&mut self, byte: u8) -> bool {
        let there = self.rest.first() == Some(&byte);
        if there {
            self.rest = &self.rest[1..];
        }
        there
    }

    /// Two digits behind a separator.
    fn after(&mut self, separator: u8) -> Option<i64> {
        if self.skip(separator) { self.number(2..=2) } else { None }
    }

    /// Two digits behind a colon, below 60; 0 without the colon.
    fn sixtieth(&mut self) -> Option<i64> {
        if self.skip(b':') { self.number(2..=2).filter(|&part| part < 60) } else { Some(0) }
    }

    /// The second of the day and its microseconds; midnight where the text is a date alone.
    fn time(&mut self) -> Option<(i64, u32)> {
        if !self.skip(b' ') && !self.skip(b'T') {
            return Some((0, 0));
        }
        let hour = self.number(2..=2).filter(|&hour| hour < 24)?;
        let minute = self.after(b':').filter(|&minute| minute < 60)?;
        let second = self.sixtieth()?;
        let micros = if self.skip(b'.') {
            let before = self.rest.len();
            let fraction = self.number(1..=6)?;
            (before - self.rest.len()..6).fold(fraction, |micros, _| micros * 10)
        } else {
            0
        };
        Some((hour * 3600 + minute * 60 + second, micros.try_into().ok()?))
    }

    /// Seconds east of UTC, from `+00`, `-03:30`, `+05:53:28`, `Z` or nothing.
    fn offset(&mut self) -> Option<i64> {
        if self.skip(b'Z') {
            return Some(0);
        }
        let sign = match self.rest.first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Some(0),
        };
        self.rest = &self.rest[1..];
        let hours = self.number(2..=2)?;
        let minutes = self.sixtieth()?;
        let seconds = self.sixtieth()?;
        Some(sign * (hours * 3600 + minutes * 60 + seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_postgres_prints_is_read() {
        let check = |text: &str, amqp: Option<u64>, rfc3339: Option<&str>| {
            let timestamp = Timestamp::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(timestamp.amqp(), amqp, "{text}");
            assert_eq!(timestamp.rfc3339().as_deref(), rfc3339, "{text}");
        };
        check("2026-11-29 20:11:38.123456+00", Some(1_795_983_098), Some("2026-11-29T20:11:38.123456Z"));
        check("2026-11-29 20:11:38.1+00", Some(1_795_983_098), Some("2026-11-29T20:11:38.100000Z"));
        check("2026-11-29 20:11:38+00", Some(1_795_983_098), Some("2026-11-29T20:11:38.000000Z"));
        check("2026-11-29 20:11:38", Some(1_795_983_098), Some("2026-11-29T20:11:38.000000Z"));
        check("2026-11-29", Some(1_795_910_400), Some("2026-11-29T00:00:00.000000Z"));
        check("2026-11-30 01:41:38.5+05:30", Some(1_795_983_098), Some("2026-11-29T20:11:38.500000Z"));
        check("2026-11-29 16:41:38-03:30", Some(1_795_983_098), Some("2026-11-29T20:11:38.000000Z"));
        check("1880-01-01 05:53:28+05:53:28", None, Some("1880-01-01T00:00:00.000000Z"));
        check("2024-02-29 23:59:59.999999+00", Some(1_709_251_199), Some("2024-02-29T23:59:59.999999Z"));
        check("1970-01-01 00:00:00+00", Some(0), Some("1970-01-01T00:00:00.000000Z"));
        check("1969-12-31 23:59:59.5+00", None, Some("1969-12-31T23:59:59.500000Z"));
        check("0001-01-01 00:00:00+00", None, Some("0001-01-01T00:00:00.000000Z"));
        check("0001-12-31 23:59:59+00 BC", None, None);
        check("4714-11-24 00:00:00+00 BC", None, None);
        check("9999-12-31 23:59:59.999999+00", Some(253_402_300_799), Some("9999-12-31T23:59:59.999999Z"));
        check("9999-12-31 23:59:59-01", Some(253_402_304_399), None);
        check("10000-01-01 00:00:00+00", Some(253_402_300_800), None);
        check("294276-12-31 23:59:59.999999+00", Some(9_224_318_015_999), None);
        check("infinity", None, None);
        check("-infinity", None, None);
    }

    #[test]
    fn what_postgres_does_not_print_is_refused() {
        for text in [
            "",
            "now",
            "Infinity",
            "2026-11-29 20:11:38.+00",
            "2026-11-29 20:11:38.1234567+00",
            "2026-11-29 20:11:60+00",
            "2026-11-29 24:00:00+00",
            "2026-11-29 20+00",
            "2026-11-29 20:11:38+0",
            "2026-11-29 20:11:38+00:60",
            "2026-11-29 20:11:38+00 AD",
            "2026-11-29 ",
            "2026-11-29BC",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2026-02-00",
            "0000-01-01",
            "26-01-01",
            "29/11/2026",
            "1234567-01-01",
            "1795983098",
            "２026-01-01",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_day_is_found_again(days in -2_500_000_i64..=110_000_000) {
            let (year, month, day) = date_of(days);
            prop_assert_eq!(days_since_epoch(year, month, day), days);
            prop_assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9 :.TZBC]{0,40}|\\PC*") {
            let _ = Timestamp::parse(&text);
        }
    }
}
