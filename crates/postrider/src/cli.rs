//! The command line: what can be asked, and in which words.

mod inbox;
mod parked;
mod quarantine;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use postrider_relay::Lsn;

pub(crate) use inbox::Inbox;
pub(crate) use parked::{Parked, Pick, Which};
pub(crate) use quarantine::{Ask, Look, Quarantine};

/// Carries events from an outbox table in Postgres to `RabbitMQ`.
#[derive(Debug, Parser)]
#[command(
    version,
    about = "Carries events from an outbox table in Postgres to RabbitMQ",
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Read the configuration from this file (also: `POSTRIDER_CONFIG`)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one key of the configuration; repeatable, wins over file and environment
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The relay: until SIGTERM or SIGINT, then drain, report, exit
    Run,
    /// Create what is missing in the database: schema, tables, publication, slot
    Init(Init),
    /// Check both sides; each finding with the statement that mends it
    Doctor(Output),
    /// Slot, lag, quarantine and the relay's health on one screen
    Status(Output),
    /// Look at or change the replication slot
    #[command(subcommand)]
    Slot(Slot),
    /// Look at events that could not be delivered, send them again, or give them up
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Look into the inbox of a consumer's database, let messages be handled afresh, delete old rows
    #[command(subcommand)]
    Inbox(Inbox),
    /// Look at messages that consumers have parked, send them back with their own ids, or give them up
    #[command(subcommand)]
    Parked(Parked),
    /// Print the effective configuration, secrets masked
    Config {
        /// Print the commented default file instead
        #[arg(long)]
        example: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Only say what is there and what would be created
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Create the inbox instead, in the database of a consumer: no publication, no slot
    #[arg(long, conflicts_with_all = ["wait", "no_failover"])]
    pub(crate) inbox: bool,
    #[command(flatten)]
    pub(crate) creation: Creation,
}

/// How a slot is created.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Creation {
    /// Give up when open transactions hold up the slot's creation for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) wait: u64,
    /// Create the slot without `failover`, which PostgreSQL 17 and later would keep on a standby
    #[arg(long)]
    pub(crate) no_failover: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Slot {
    /// List the replication slots of the server
    List(Output),
    /// Create the slot, and record it for the relay
    Create {
        /// Default: postgres.slot
        name: Option<String>,
        #[command(flatten)]
        creation: Creation,
        #[command(flatten)]
        output: Output,
    },
    /// Drop the slot: what it has not delivered is lost to it
    Drop {
        /// Default: postgres.slot
        name: Option<String>,
        /// Do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Move the slot forward: what lies between is never delivered
    Advance {
        /// Default: postgres.slot
        name: Option<String>,
        /// An LSN such as 0/16B3748, or `end` for the server's present position
        #[arg(long, value_name = "LSN|end")]
        to: Target,
        /// Do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
}

/// Where a slot is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Lsn(Lsn),
    /// Where the server writes now.
    End,
}

impl std::str::FromStr for Target {
    type Err = postrider_relay::LsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "end" { Ok(Target::End) } else { text.parse().map(Target::Lsn) }
    }
}

/// A name or an id. An empty one is nobody's: it stands there when a script's variable is not set.
fn named() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_the_contract_names_is_understood() {
        for line in [
            "run",
            "--config f run --set a.b=c",
            "init --dry-run --wait 5 --no-failover",
            "init --inbox --dry-run",
            "inbox list --consumer w --id E-42 --all-states --limit 5 --json",
            "inbox retry --consumer w --id E-42",
            "inbox show --consumer w --id E-42 --source shop --json",
            "inbox retry --consumer w --id E-42 --source=",
            "inbox prune --older-than 30d --yes",
            "parked list --queue q --id a --id b --limit 5 --json",
            "parked show --queue q --payload",
            "parked retry --queue q --id a --consumer w --to-queue r --json",
            "parked retry --queue q --all --by-exchange",
            "parked discard --queue q --all --yes",
            "parked discard --queue q --id a --unmarked --yes",
            "doctor --json",
            "status --json",
            "slot list --json",
            "slot create other --wait 1",
            "slot drop --yes",
            "slot advance --to end --yes",
            "slot advance other --to 0/16B3748",
            "quarantine list --json --all-states --limit 5",
            "quarantine list --id a --id b --aggregate order/1 --reason unrouted --older-than 7d",
            "quarantine show --position 0/16B3748/3 --payload --json",
            "quarantine retry --all --wait 5",
            "quarantine discard --all --no-wait --yes",
            "config --example",
        ] {
            let words = ["postrider"].into_iter().chain(line.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "",
            "quarantine",
            "quarantine list --limit 0",
            "quarantine list --reason tired",
            "quarantine list --position 0/1",
            "quarantine retry --all --id a",
            "quarantine retry --all --wait 5 --no-wait",
            "prune",
            "parked list",
            "parked list --queue q --limit 1001",
            "parked retry --queue q --all --id a",
            "parked retry --queue q --all --to-queue r --by-exchange",
            "inbox show --id a",
            "inbox list --consumer=",
            "inbox list --id=",
            "inbox show --consumer= --id a",
            "inbox show --consumer w --id=",
            "inbox retry --consumer= --id a",
            "inbox retry --consumer w --id=",
            "inbox prune --older-than 30d --consumer=",
            "parked list --queue=",
            "parked show --queue q --id=",
            "parked retry --queue q --all --consumer=",
            "parked retry --queue q --all --to-queue=",
            "parked discard --queue q --id=",
            "slot advance",
            "slot advance --to 0",
            "init --wait 0",
        ] {
            let words = ["postrider"].into_iter().chain(line.split(' '));
            assert_eq!(Cli::try_parse_from(words).expect_err(line).exit_code(), 2, "{line}");
        }
    }
}
