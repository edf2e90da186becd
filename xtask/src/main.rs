//! Development commands, run as `cargo xtask NAME`. They know the binary only as a program.

mod bench;
mod chaos;
mod corpus;
mod demo;
mod fuzz;
mod install;
mod mutants;
mod slot;
mod test;
mod tidy;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;

/// Development commands of Postrider.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Shows the relay at work on real servers, kills it on the way, and counts what arrived
    Demo(demo::Arguments),
    /// Checks everything: format, rules, lints, docs, and the tests of all four rings on real servers
    Test(test::Arguments),
    /// The same without questions, as it runs on a machine without a person
    Ci,
    /// Installs the servers and languages that tests need, if any is missing
    Install {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Checks the rules that no compiler knows
    Tidy,
    /// Runs `postrider slot` from this checkout
    #[command(disable_help_flag = true)]
    Slot {
        /// What comes after `postrider slot`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Breaks the code on purpose, patch by patch, and expects the tests to mind
    Mutants {
        /// Only the mutants whose name holds this
        only: Option<String>,
    },
    /// Records anew what a real Postgres sends, for the decoder's tests
    Corpus,
    /// Breaks servers, links and relays at random for minutes, and judges what was delivered
    Chaos(chaos::Arguments),
    /// Gives damaged recordings of a real Postgres to the decoder and the whole relay
    Fuzz(fuzz::Arguments),
    /// Measures the relay beside Postgres' own reader and a bare publisher, in the release profile
    Bench(bench::Arguments),
    #[command(hide = true)]
    BenchPublisher(bench::publisher::Arguments),
}

fn main() -> ExitCode {
    match run(Task::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: failed to {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let root = root()?;
    match task {
        Task::Demo(arguments) => wait(demo::run(&root, arguments)),
        Task::Test(arguments) => wait(test::run(&root, arguments)),
        Task::Ci => wait(test::run(&root, test::Arguments::without_questions())),
        Task::Install { yes } => install::servers_and_languages(&root, yes).map(drop),
        Task::Tidy => tidy::check(&root),
        Task::Slot { arguments } => slot::run(&arguments),
        Task::Mutants { only } => mutants::run(&root, only.as_deref()),
        Task::Corpus => wait(corpus::record()),
        Task::Chaos(arguments) => wait(chaos::run(&root, arguments)),
        Task::Fuzz(arguments) => fuzz::run(&root, &arguments),
        Task::Bench(arguments) => {
            bench::build(&root)?;
            wait(bench::run(arguments))
        }
        Task::BenchPublisher(arguments) => wait(bench::publisher::run(arguments)),
    }
}

fn wait(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
    runtime.block_on(work)
}

/// The checkout.
fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().context("find the checkout")
}

/// Cargo as it was called, so that a chosen toolchain stays chosen, without what it has told this program of itself:
/// build scripts look at that, and what they have built would be built again.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}
