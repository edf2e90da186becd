//! The words of `postrider parked`.

use clap::{Args, Subcommand};

use super::{Output, named};
use crate::config::ConfigError;

#[derive(Debug, Subcommand)]
pub(crate) enum Parked {
    /// List the first messages of a parking queue, which keeps them
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        output: Output,
    },
    /// Show messages in full, without their payload unless it is asked for
    Show {
        /// Print the payload as well
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        output: Output,
    },
    /// Send messages back with their own ids, to the queue from which they were parked
    Retry {
        /// Let this consumer's inbox forget their attempts
        #[arg(long, value_name = "NAME", value_parser = named())]
        consumer: Option<String>,
        /// Send them to this queue instead
        #[arg(long, value_name = "NAME", value_parser = named(), conflicts_with = "by_exchange")]
        to_queue: Option<String>,
        /// Send them to the exchange and with the routing key by which they came: every bound queue gets them
        #[arg(long)]
        by_exchange: bool,
        #[command(flatten)]
        pick: Pick,
    },
    /// Take messages out of the queue: nobody will handle them
    Discard {
        /// Do it
        #[arg(long)]
        yes: bool,
        /// Also those that do not say that they were parked: by another program, or this is no parking queue
        #[arg(long)]
        unmarked: bool,
        #[command(flatten)]
        pick: Pick,
    },
}

/// Which messages of which queue.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The parking queue
    #[arg(long, value_name = "NAME", value_parser = named())]
    pub(crate) queue: String,
    /// By the message's id; repeatable
    #[arg(long, value_name = "MESSAGE_ID", value_parser = named())]
    pub(crate) id: Vec<String>,
    /// Look at so many messages at most, the first of the queue
    #[arg(long, value_name = "MESSAGES", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
}

/// The same, where that it is every one has to be said.
#[derive(Debug, Args)]
pub(crate) struct Pick {
    #[command(flatten)]
    which: Which,
    /// Every message
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl Pick {
    /// Which. That it is every one has to be said.
    pub(crate) fn which(&self, doing: &str) -> Result<&Which, ConfigError> {
        if self.which.id.is_empty() && !self.all {
            return Err(ConfigError(format!("see what to {doing}: give one or more --id, or --all")));
        }
        Ok(&self.which)
    }
}
