//! `cargo xtask slot` prints what `postrider slot` prints.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use testenv::relay::{Output, Program};

use crate::run::{command, expect};
use crate::stage::{BINARY, Stage};

/// Stands in for cargo: sees to which package it is sent, and runs ours instead of building it once more.
fn cargo() -> String {
    let expected = "run --quiet --package postrider --";
    format!("#!/bin/sh\n[ \"$1 $2 $3 $4 $5\" = '{expected}' ] || exit 99\nshift 5\nexec {BINARY} \"$@\"\n")
}

#[tokio::test]
async fn xtask_prints_what_the_binary_prints() -> Result<()> {
    let stage = Stage::new("slot xtask").await?;
    let (binary, name) = (&stage.rig.admin, stage.name());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, cargo()).context("write the script")?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).context("make it a program")?;
    let xtask = Program::new(xtask().await?)
        .env("CARGO", &path)
        .set("postgres.url", stage.rig.scope.admin_url())
        .set("postgres.slot", name)
        .set("postgres.publication", name);
    // Each after a command of the binary's that lets both find the same.
    for (before, words, code) in [
        ("slot create", "slot list", 0),
        ("slot create", "slot list --json", 0),
        ("slot create", "slot create --json", 0),
        ("slot create", "slot drop", 2),
        ("slot create", "slot advance --to end", 2),
        ("slot create", "slot drop --yes", 0),
        ("slot list", "slot drop --yes", 1),
        ("slot create", "slot create", 0),
        ("slot create", "slot drip", 2),
    ] {
        let mut said = Vec::new();
        for program in [binary, &xtask] {
            expect(binary, before, 0).await?;
            let output = command(program, words).await?;
            ensure!(output.code == Some(code), "{words}: {output}");
            said.push(comparable(&output, name));
        }
        assert_eq!(said[0], said[1], "{words}");
    }
    expect(binary, "slot drop --yes", 0).await?;
    assert!(command(&xtask, "slot create").await?.stdout.starts_with(&format!("slot {name}: created\n")));
    std::fs::remove_file(&path).context("remove the script")
}

/// The words of the lines about our slot, without amounts: other tests' slots come and go, and the log grows.
fn comparable(output: &Output, name: &str) -> Vec<String> {
    let list = output.stdout.lines().filter(|line| line.contains(name));
    let lines = list.chain(output.stderr.lines());
    let amount = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) || word.ends_with('B');
    let words = lines.flat_map(str::split_whitespace).filter(|word| !amount(word)).map(str::to_owned);
    words.collect()
}

/// The program beside ours; built where it is not there, as happens outside `cargo xtask test`.
async fn xtask() -> Result<PathBuf> {
    let folder = Path::new(BINARY).parent().context("the binary lies in a folder")?;
    let xtask = folder.join("xtask");
    if !xtask.is_file() {
        let mut cargo = tokio::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "xtask", "--target-dir"]);
        cargo.arg(folder.parent().context("the target directory")?).current_dir(env!("CARGO_MANIFEST_DIR"));
        let built = cargo.output().await.context("start cargo")?;
        ensure!(built.status.success(), "build xtask: {}", String::from_utf8_lossy(&built.stderr));
    }
    Ok(xtask)
}
