//! `cargo xtask bench`: how fast the relay is, beside what bounds it: Postgres' own reader of the same log, and a
//! publisher that does nothing else.
//!
//! A figure of a leg that lost or repeated anything is no figure but an error.

mod backlog;
mod depth;
mod leg;
pub(crate) mod publisher;
mod quantile;
mod rig;
mod steady;
mod table;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Error, Result, ensure};
use testenv::consumer::QueueKind;
use testenv::install::Servers;

use backlog::Case;
use rig::Rig;
use steady::Steady;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A tenth of the events, for a first impression
    #[arg(long)]
    quick: bool,
    /// Also classic queues, transactions of 1,000 rows, 16 aggregates and 1
    #[arg(long)]
    all: bool,
    /// Events of a drain
    #[arg(long, default_value_t = 500_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1000..))]
    events: u32,
    /// How often each leg runs; the median counts
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Only what has this in its title, or `steady`
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Do not ask before a missing server is installed
    #[arg(long)]
    yes: bool,
}

/// Builds what is measured and what measures it in the release profile, and goes on as the latter.
pub(crate) fn build(root: &Path) -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    let mut cargo = crate::cargo();
    cargo.args(["build", "--release", "--package", "postrider", "--package", "xtask"]).current_dir(root);
    ensure!(cargo.status().context("start cargo")?.success(), "build the release profile");
    let own = std::env::current_exe().context("find this program")?;
    let target = own.ancestors().nth(2).context("find the target folder")?;
    let mut release = Command::new(target.join("release/xtask"));
    Err(Error::new(release.args(std::env::args_os().skip(1)).exec()).context("start the release build"))
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let servers = crate::install::servers(arguments.yes)?;
    ensure!(
        servers == Servers::Installed,
        "measure: the servers must run on this machine, not in a container"
    );
    let mut cases = cases(&arguments);
    cases.retain(|case| arguments.only.as_ref().is_none_or(|word| case.to_string().contains(word)));
    let rig = Rig::start().await?;
    println!("{}", rig.machine().await?);
    for (number, case) in (1..).zip(&cases) {
        println!("\n{case}");
        let readings = leg::drain(&rig, &format!("drain{number}"), case, arguments.runs).await?;
        table::drain(&readings);
    }
    if arguments.only.as_ref().is_none_or(|word| "steady".contains(word)) {
        let steady = Steady { rate: 1000, seconds: if arguments.quick { 5 } else { 20 } };
        table::steady(steady, &steady.measure(&rig, arguments.runs).await?);
    }
    Ok(())
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let events = if arguments.quick { arguments.events / 10 } else { arguments.events };
    let main = Case { queue: QueueKind::Quorum, events, rows: 1, aggregates: 10_000 };
    let mut cases = vec![main];
    if arguments.all {
        cases.extend([
            Case { rows: 1000, ..main },
            Case { queue: QueueKind::Classic, ..main },
            Case { queue: QueueKind::Classic, rows: 1000, ..main },
            // Few aggregates let few events out at once: fewer events take as long.
            Case { aggregates: 16, events: events / 10, ..main },
            Case { aggregates: 1, events: events / 50, ..main },
        ]);
    }
    cases
}
