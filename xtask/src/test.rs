//! `cargo xtask test`: everything that has to hold before a commit lands, ended by one plain line of counts.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testenv::compose::Compose;
use testenv::install::{self, Servers};
use testenv::{Addresses, Pair, pair};

use crate::{cargo, tidy};

/// What to test, and whether to ask.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Do not ask before what is missing is installed
    #[arg(long)]
    yes: bool,
    /// Only `cargo test` with these arguments, on the shared servers
    #[arg(last = true)]
    only: Vec<OsString>,
}

impl Arguments {
    pub(crate) fn without_questions() -> Self {
        Self { yes: true, only: Vec::new() }
    }
}

/// Runs the checks, then all tests on a pair of servers that they share.
pub(crate) async fn run(root: &Path, arguments: Arguments) -> Result<()> {
    let servers = crate::install::servers_and_languages(root, arguments.yes)?;
    // Said aloud here, where a person sees it, rather than inside a test.
    for bin in [install::postgres_14()?, install::postgres_18()?] {
        eprintln!("servers: {}", bin.display());
    }
    let only = (!arguments.only.is_empty()).then_some(arguments.only);
    if only.is_none() {
        tidy::check(root)?;
        check(root)?;
    }
    // Built before the servers run: they would only slow it down.
    let all: Vec<OsString> = WORKSPACE.iter().map(Into::into).collect();
    let build = [vec!["--no-run".into()], before_dashes(only.as_ref().unwrap_or(&all))].concat();
    ensure!(cargo_test(root, &build).status().context("start cargo")?.success(), "build the tests");

    let shared = Shared::start(servers).await?;
    let counts = match only {
        Some(only) => count(root, &only, &shared, |line| println!("{line}"))?,
        None => count_all(root, &shared)?,
    };
    drop(shared);
    println!("{} passed, {} failed", counts.passed, counts.failed);
    ensure!(counts.succeeded && counts.failed == 0, "pass all tests");
    ensure!(counts.passed > 0, "run any test");
    ensure!(counts.ignored == 0, "run all tests: {} are ignored", counts.ignored);
    Ok(())
}

/// Format, lints and docs.
fn check(root: &Path) -> Result<()> {
    for (arguments, rustdoc) in [
        (&["fmt", "--all", "--check"][..], ""),
        (&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"], ""),
        (&["doc", "--workspace", "--all-features", "--no-deps", "--document-private-items"], "-D warnings"),
    ] {
        let line = format!("cargo {}", arguments.join(" "));
        eprintln!("+ {line}");
        let mut command = cargo();
        command.args(arguments).current_dir(root).env("RUSTDOCFLAGS", rustdoc);
        ensure!(command.status().context("start cargo")?.success(), "pass {line}");
    }
    Ok(())
}

/// The servers that all test processes share, and the file that tells them where they are.
struct Shared {
    _servers: Running,
    file: std::path::PathBuf,
}

enum Running {
    Installed(Box<Pair>),
    Compose(Compose),
}

impl Shared {
    async fn start(servers: Servers) -> Result<Self> {
        let servers = match servers {
            Servers::Installed => Running::Installed(Box::new(Pair::for_sharing().await?)),
            Servers::Compose => Running::Compose(Compose::up()?),
        };
        let addresses: Addresses = match &servers {
            Running::Installed(pair) => pair.addresses(),
            Running::Compose(compose) => compose.addresses(),
        };
        let file = std::env::temp_dir().join(format!("postrider-pair-{}.json", std::process::id()));
        addresses.write(&file)?;
        Ok(Self { _servers: servers, file })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A file of three lines in the temporary folder may stay.
        let _ = std::fs::remove_file(&self.file);
    }
}

/// What the closing lines of all test programs add up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Whether cargo was content: a program that died has no closing line.
    succeeded: bool,
}

/// Everything that is tested.
const WORKSPACE: [&str; 2] = ["--workspace", "--all-features"];

/// The targets with tests that break servers of their own: one test at a time on the machine (`testenv::Turn`), and most
/// of the time it waits for a peer to be missed.
const BREAKING: [&str; 6] = ["faults", "inbox", "judge", "majority", "outages", "servers"];

/// Runs all tests: those that break servers one after the other, and the others beside them.
fn count_all(root: &Path, shared: &Shared) -> Result<Counts> {
    let of = |targets: &[&str]| WORKSPACE.iter().chain(targets).map(Into::into).collect::<Vec<OsString>>();
    let names = test_targets(root)?;
    for name in BREAKING {
        ensure!(names.contains(name), "find the tests {name:?}: {names:?}");
    }
    let targets_that = |breaking| {
        let names = names.iter().map(String::as_str).filter(move |name| BREAKING.contains(name) == breaking);
        names.flat_map(|name| ["--test", name])
    };
    let breaking: Vec<&str> = targets_that(true).collect();
    let others: Vec<&str> = ["--lib", "--bins"].into_iter().chain(targets_that(false)).collect();
    std::thread::scope(|scope| {
        // Said when the others have said theirs.
        let mut lines = Vec::new();
        let breaking = scope.spawn(|| {
            let counts = count(root, &of(&breaking), shared, |line| lines.push(line.to_owned()))?;
            Ok((counts, lines))
        });
        let mut counts = Counts { succeeded: true, ..Counts::default() };
        for targets in [&others[..], &["--doc"]] {
            counts.join(&count(root, &of(targets), shared, |line| println!("{line}"))?);
        }
        let breaking: Result<_> = breaking.join().expect("it does not panic");
        let (more, lines) = breaking?;
        for line in lines {
            println!("{line}");
        }
        counts.join(&more);
        Ok(counts)
    })
}

/// The names of the workspace's `tests/`.
fn test_targets(root: &Path) -> Result<BTreeSet<String>> {
    let mut metadata = cargo();
    metadata
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .stderr(Stdio::inherit());
    let output = metadata.output().context("start cargo")?;
    ensure!(output.status.success(), "ask cargo for the workspace's targets");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("read cargo's metadata: packages")?;
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"] == json!(["test"]));
    Ok(tests.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect())
}

/// Runs `cargo test`, and shows each line that the tests say.
fn count(root: &Path, tests: &[OsString], shared: &Shared, mut show: impl FnMut(&str)) -> Result<Counts> {
    let arguments = [vec!["--no-fail-fast".into()], tests.to_vec()].concat();
    let mut command = cargo_test(root, &arguments);
    command.env(pair::SHARED, &shared.file).stdout(Stdio::piped());
    let mut tests = command.spawn().context("start cargo test")?;
    let output = tests.stdout.take().context("read the tests' output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        show(&line);
        counts.add(&line);
    }
    counts.succeeded = tests.wait().context("wait for cargo test")?.success();
    Ok(counts)
}

impl Counts {
    /// Adds those of another run.
    fn join(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.succeeded &= other.succeeded;
    }

    /// Adds a line such as `test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; …`; no other line counts.
    fn add(&mut self, line: &str) {
        let Some((_, numbers)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

fn cargo_test(root: &Path, arguments: &[OsString]) -> Command {
    let mut command = cargo();
    command.arg("test").args(arguments).current_dir(root);
    command
}

/// What is cargo's own, without what it hands on to the test programs.
fn before_dashes(arguments: &[OsString]) -> Vec<OsString> {
    arguments.iter().take_while(|argument| *argument != "--").cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut counts = Counts::default();
        for line in [
            "test tests::passes ... ok",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "a test printed: 9 passed; 9 failed",
            "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 4 filtered out; finished in 1.52s",
        ] {
            counts.add(line);
        }
        assert_eq!(counts, Counts { passed: 7, failed: 1, ignored: 3, succeeded: false });
        let mut all = Counts { succeeded: true, ..Counts::default() };
        all.join(&counts);
        all.join(&Counts { passed: 1, succeeded: true, ..Counts::default() });
        assert_eq!(all, Counts { passed: 8, failed: 1, ignored: 3, succeeded: false });
    }
}
