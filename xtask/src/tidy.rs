//! `cargo xtask tidy`: rules of the house that no compiler knows.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// What may stand at the top of the checkout.
const TOP: [&str; 14] = [
    ".cargo",
    ".ci",
    ".clippy.toml",
    ".gitignore",
    ".rustfmt.toml",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "crates",
    "sql",
    "testenv",
    "xtask",
];
/// A longer file probably holds a second noun.
const LINES: usize = 400;
/// Cut in two, so that this file does not hold them.
const BANNED: [(&str, &str, &str); 4] = [
    ("/wo", "rk/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("#[ign", "ore", "a test that does not run"),
    ("#[allow", "(", "a lint switched off without a reason"),
];
/// Who must not know whom, by the words of a manifest.
const WALLS: [(&str, &str); 6] = [
    // The one TLS provider is ring.
    ("Cargo.lock", "aws-lc"),
    ("testenv/Cargo.toml", "postrider"),
    ("xtask/Cargo.toml", "postrider"),
    ("crates/relay/Cargo.toml", "tokio"),
    ("crates/rabbitmq/Cargo.toml", "pgwire"),
    ("crates/inbox/Cargo.toml", "postrider-relay"),
];

/// Looks at every file that git knows or would add.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut broken = Vec::new();
    for path in files(root)? {
        let top = path.split('/').next().unwrap_or_default();
        if !TOP.contains(&top) {
            broken.push(format!("{path}: {top} does not belong at the top"));
        }
        // A file that is not text has none of these words.
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        broken.extend(faults(&path, &text));
        let lines = text.lines().count();
        if Path::new(&path).extension().is_some_and(|ending| ending == "rs") && lines > LINES {
            eprintln!("tidy: warning: {path} has {lines} lines: look for the second noun");
        }
    }
    if !broken.is_empty() {
        bail!("keep the house rules:\n{}", broken.join("\n"));
    }
    Ok(())
}

/// What is wrong with one file.
fn faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (first, second, why) in BANNED {
            if line.contains(&format!("{first}{second}")) {
                faults.push(format!("{path}:{number}: {first}{second} is {why}"));
            }
        }
    }
    for (manifest, word) in WALLS {
        let dependency = |line: &str| line.starts_with(word) || line.contains(&format!("\"{word}"));
        if path == manifest && text.lines().any(dependency) {
            faults.push(format!("{path}: must not depend on {word}"));
        }
    }
    faults
}

fn files(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("start git")?;
    ensure!(listed.status.success(), "list files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).context("read file names")?;
    // A file that was just removed is still listed.
    let there = listed.split('\0').filter(|path| root.join(path).is_file() && !path.is_empty());
    Ok(there.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: usize) {
        assert_eq!(faults(path, text).len(), expected, "{path}: {text}");
    }

    #[test]
    fn broken_rules_are_found() {
        check("crates/relay/src/lsn.rs", "fn fine() {}", 0);
        check("README.md", concat!("cd /wo", "rk/main\n", "cd /ro", "ot/main"), 2);
        check("testenv/tests/link.rs", concat!("#[ign", "ore = \"slow\"]"), 1);
        check("testenv/Cargo.toml", "[package]\nname = \"testenv\"\ntokio.workspace = true", 0);
        check("testenv/Cargo.toml", "postrider-relay.workspace = true", 1);
        check("crates/relay/Cargo.toml", "description = \"no tokio\"\nserde_json.workspace = true", 0);
        check("crates/relay/Cargo.toml", "tokio.workspace = true", 1);
    }
}
