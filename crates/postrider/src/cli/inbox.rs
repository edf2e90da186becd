//! The words of `postrider inbox`.

use std::time::Duration;

use clap::Subcommand;

use super::quarantine::age;
use super::{Output, named};

#[derive(Debug, Subcommand)]
pub(crate) enum Inbox {
    /// List the messages that failed, are being handled, or wait for somebody to reconcile them
    List {
        /// Only this consumer's
        #[arg(long, value_name = "NAME", value_parser = named())]
        consumer: Option<String>,
        /// Only of this id
        #[arg(long, value_name = "MESSAGE_ID", value_parser = named())]
        id: Option<String>,
        /// Completed ones as well
        #[arg(long)]
        all_states: bool,
        /// At most so many, the oldest first
        #[arg(long, value_name = "ROWS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        #[command(flatten)]
        output: Output,
    },
    /// Show one message with all that stands in the inbox
    Show {
        /// The consumer
        #[arg(long, value_name = "NAME", value_parser = named())]
        consumer: String,
        /// The message's id
        #[arg(long, value_name = "MESSAGE_ID", value_parser = named())]
        id: String,
        /// Its source, where several have sent this id
        #[arg(long, value_name = "SOURCE")]
        source: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Let a message that failed, or that nobody reconciled, be handled afresh when it is sent again
    Retry {
        /// The consumer
        #[arg(long, value_name = "NAME", value_parser = named())]
        consumer: String,
        /// The message's id
        #[arg(long, value_name = "MESSAGE_ID", value_parser = named())]
        id: String,
        /// Its source, where the consumer gives one
        #[arg(long, value_name = "SOURCE", default_value = "")]
        source: String,
    },
    /// Delete completed rows, which protect from duplicates; never inside the duplicate window
    Prune {
        /// Completed for longer than this, such as 30d, by the consumer's own activity
        #[arg(long, value_name = "AGE", value_parser = age)]
        older_than: Duration,
        /// Only this consumer's
        #[arg(long, value_name = "NAME", value_parser = named())]
        consumer: Option<String>,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
}
