//! The words of `postrider quarantine`.

use std::time::Duration;

use clap::{Args, Subcommand};
use postrider_postgres as postgres;
use postrider_relay::{AggregateKey, Position, Reason};

use super::Output;
use crate::config::ConfigError;

#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// List the events that are parked, or released and being sent
    List(Look),
    /// Show events in full, without their payload unless it is asked for
    Show {
        /// Print the payload as well
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        look: Look,
    },
    /// Ask the relay to send parked events, each with its aggregate's events that wait behind it
    Retry(Ask),
    /// Ask the relay never to send parked events: they are lost to the consumers
    Discard {
        /// Do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        ask: Ask,
    },
}

/// Which events are looked at, and how.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// Delivered and discarded events as well
    #[arg(long)]
    pub(crate) all_states: bool,
    /// At most so many events, the lowest positions first
    #[arg(long, value_name = "EVENTS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
    #[command(flatten)]
    pub(crate) output: Output,
    // Last, because its heading is over all that follows.
    #[command(flatten)]
    filter: Filter,
}

impl Look {
    /// Which; without a filter, every one.
    pub(crate) fn filter(&self) -> postgres::Filter {
        self.filter.meaning()
    }
}

/// Which parked events are meant, and how long to wait for the relay.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// Wait so long for what becomes of them
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    wait: u64,
    /// Do not wait: the request stands in the log
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    // Last, because its heading is over all that follows.
    #[command(flatten)]
    filter: Filter,
}

impl Ask {
    /// Which. That it is every one has to be said.
    pub(crate) fn filter(&self, doing: &str) -> Result<postgres::Filter, ConfigError> {
        let filter = self.filter.meaning();
        if filter.is_everything() && !self.filter.all {
            return Err(ConfigError(format!(
                "see what to {doing}: give one or more of --id, --aggregate, --reason, --older-than and \
                 --position, or --all"
            )));
        }
        Ok(filter)
    }

    /// How long to wait; None is not at all.
    pub(crate) fn wait(&self) -> Option<Duration> {
        (!self.no_wait).then(|| Duration::from_secs(self.wait))
    }
}

/// Several values of one filter are alternatives; several filters must all hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which events (several filters must all hold, of each one value)")]
struct Filter {
    /// By the event's id; repeatable
    #[arg(long, value_name = "MESSAGE_ID")]
    id: Vec<String>,
    /// By aggregate, such as order/42; repeatable
    #[arg(long, value_name = "TYPE/ID", value_parser = aggregate)]
    aggregate: Vec<AggregateKey>,
    /// By reason, such as unrouted; repeatable
    #[arg(long, value_name = "WORD", value_parser = reason)]
    reason: Vec<Reason>,
    /// Parked for longer than this, such as 7d, 12h, 30m or 45s
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// By position, such as 0/16B3748/3; repeatable
    #[arg(long, value_name = "POSITION")]
    position: Vec<Position>,
    /// Every event
    #[arg(long, conflicts_with_all = ["id", "aggregate", "reason", "older_than", "position"])]
    all: bool,
}

impl Filter {
    fn meaning(&self) -> postgres::Filter {
        postgres::Filter {
            ids: self.id.clone(),
            aggregates: self.aggregate.clone(),
            reasons: self.reason.clone(),
            older_than: self.older_than,
            positions: self.position.clone(),
        }
    }
}

/// The type ends at the first slash; the id may have more.
fn aggregate(text: &str) -> Result<AggregateKey, String> {
    let (aggregate_type, id) = text.split_once('/').ok_or("expected TYPE/ID, such as order/42")?;
    Ok(AggregateKey::new(aggregate_type, id))
}

fn reason(text: &str) -> Result<Reason, String> {
    let found = Reason::ALL.into_iter().find(|reason| reason.as_str() == text);
    let words = || Reason::ALL.map(Reason::as_str).join(", ");
    found.ok_or_else(|| format!("expected one of {}", words()))
}

/// Ages are counted to a century, which no interval of Postgres is too short for.
const AGE_MAX_S: u64 = 100 * 365 * 86_400;

pub(super) fn age(text: &str) -> Result<Duration, String> {
    let unit_s = match text.bytes().last() {
        Some(b'd') => 86_400,
        Some(b'h') => 3600,
        Some(b'm') => 60,
        Some(b's') => 1,
        _ => 0,
    };
    let digits =
        text.get(..text.len().saturating_sub(1)).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let count = digits.and_then(|digits| digits.parse::<u64>().ok());
    let seconds = count.and_then(|count| count.checked_mul(unit_s)).filter(|_| unit_s > 0);
    seconds
        .filter(|seconds| *seconds <= AGE_MAX_S)
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a whole number and its unit, such as 7d, 12h, 30m or 45s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_a_unit() {
        for (text, seconds) in [
            ("7d", Some(604_800)),
            ("12h", Some(43_200)),
            ("30m", Some(1800)),
            ("45s", Some(45)),
            ("0s", Some(0)),
        ] {
            assert_eq!(age(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
        for text in
            ["", "7", "d", "-7d", "+7d", "7 d", "1.5h", "7w", "7dd", "99999999999999999999d", "36501d", "7é"]
        {
            assert!(age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_type_of_an_aggregate_ends_at_the_first_slash() {
        assert_eq!(aggregate("order/a/b"), Ok(AggregateKey::new("order", "a/b")));
        assert_eq!(aggregate("order/"), Ok(AggregateKey::new("order", "")));
        assert!(aggregate("order").is_err());
    }

    #[test]
    fn every_reason_is_a_word() {
        for known in Reason::ALL {
            assert_eq!(reason(known.as_str()), Ok(known));
        }
        assert!(reason("Unrouted").is_err_and(|words| words.contains("unrouted, nacked")));
    }
}
