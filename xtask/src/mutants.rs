//! `cargo xtask mutants`: breaks the code on purpose, one committed patch at a time, and expects the named
//! tests to fail. A mutant that no test minds is a hole in the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// A committed patch: what it breaks, and the tests that must mind. Both stand before the diff, which
/// `git apply` passes over.
#[derive(Debug)]
struct Mutant {
    name: String,
    patch: PathBuf,
    breaks: String,
    /// The arguments of `cargo test`.
    tests: Vec<String>,
}

/// Applies every mutant whose name holds `only` to a copy of the checkout and runs its tests there.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let mut mutants = read(&root.join("xtask/mutants"))?;
    mutants.retain(|mutant| only.is_none_or(|only| mutant.name.contains(only)));
    ensure!(!mutants.is_empty(), "find a mutant: none of that name in xtask/mutants");
    let copy = Copy::make(root)?;

    let mut suites: Vec<_> = mutants.iter().map(|mutant| mutant.tests.clone()).collect();
    suites.sort();
    suites.dedup();
    for tests in suites {
        println!("unbroken: cargo test {}", tests.join(" "));
        let output = copy.cargo_test(&tests)?;
        ensure!(output.status.success(), "trust a red test: it is red without a mutant\n{}", tail(&output));
    }

    let mut survivors = Vec::new();
    for mutant in &mutants {
        copy.git_apply(&mutant.patch, &[])?;
        let verdict = copy.judge(mutant);
        copy.git_apply(&mutant.patch, &["--reverse"])?;
        if let Some(test) = verdict? {
            println!("killed    {:<34} by {test}", mutant.name);
        } else {
            println!("SURVIVED  {:<34} {}", mutant.name, mutant.breaks);
            survivors.push(mutant.name.as_str());
        }
    }
    let (killed, survived) = (mutants.len() - survivors.len(), survivors.len());
    println!("{killed} mutants killed, {survived} survived");
    ensure!(survivors.is_empty(), "kill every mutant: no test minds {}", survivors.join(", "));
    Ok(())
}

fn read(folder: &Path) -> Result<Vec<Mutant>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut mutants = Vec::new();
    for entry in entries {
        let patch = entry?.path();
        if patch.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let text = std::fs::read_to_string(&patch).with_context(|| format!("read {}", patch.display()))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).with_context(|| format!("find a line \"{name}\" in {}", patch.display()))
        };
        let (breaks, tests) = (field("breaks:")?, field("tests:")?);
        mutants.push(Mutant {
            name: patch.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            breaks: breaks.to_owned(),
            tests: tests.split_whitespace().map(str::to_owned).collect(),
            patch: patch.clone(),
        });
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// A copy of the checkout with a target folder of its own, so that no mutant ever stands in the real one.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn make(root: &Path) -> Result<Self> {
        let folder = root.join("target/mutants");
        let tree = folder.join("tree");
        if tree.exists() {
            std::fs::remove_dir_all(&tree).context("remove the last copy")?;
        }
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("list the checkout's files")?;
        ensure!(
            listed.status.success(),
            "list the checkout's files: {}",
            String::from_utf8_lossy(&listed.stderr)
        );
        for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
            let (from, to) = (root.join(name), tree.join(name));
            if from.is_file() {
                std::fs::create_dir_all(to.parent().context("find a file's folder")?)?;
                std::fs::copy(&from, &to).with_context(|| format!("copy {name}"))?;
            }
        }
        // Its own repository: else git would apply patches relative to the one around it.
        let init = Command::new("git").args(["init", "--quiet"]).current_dir(&tree).status()?;
        ensure!(init.success(), "make the copy a repository of its own");
        Ok(Self { tree, target: folder.join("build") })
    }

    fn git_apply(&self, patch: &Path, options: &[&str]) -> Result<()> {
        let output =
            Command::new("git").arg("apply").args(options).arg(patch).current_dir(&self.tree).output()?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "apply {}: the code has moved on, renew it\n{words}",
            patch.display()
        );
        Ok(())
    }

    /// The first test that minds, if one does.
    fn judge(&self, mutant: &Mutant) -> Result<Option<String>> {
        let (cargo, own): (Vec<_>, Vec<_>) = split(&mutant.tests);
        let built = self.cargo(&[&["test", "--no-run"], &cargo[..]].concat())?;
        ensure!(
            built.status.success(),
            "build the mutant {}: it must compile\n{}",
            mutant.name,
            tail(&built)
        );
        let output = self.cargo(&[&["test"], &cargo[..], &["--"], &own[..]].concat())?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let failed = printed.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        match (output.status.success(), failed) {
            (true, _) => Ok(None),
            (false, Some(test)) => Ok(Some(test.to_owned())),
            (false, None) => bail!(
                "run the tests of {}: they failed without a failed test\n{}",
                mutant.name,
                tail(&output)
            ),
        }
    }

    fn cargo_test(&self, tests: &[String]) -> Result<Output> {
        let (cargo, own) = split(tests);
        self.cargo(&[&["test"], &cargo[..], &["--"], &own[..]].concat())
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(arguments)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .output()
            .context("run cargo")
    }
}

/// The arguments for cargo, and those behind `--` for the test program.
fn split(tests: &[String]) -> (Vec<&str>, Vec<&str>) {
    let all: Vec<_> = tests.iter().map(String::as_str).collect();
    match all.iter().position(|word| *word == "--") {
        Some(at) => (all[..at].to_vec(), all[at + 1..].to_vec()),
        None => (all, Vec::new()),
    }
}

fn tail(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
