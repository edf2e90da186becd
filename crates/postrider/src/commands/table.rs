//! Rows for people: aligned on a terminal, tab-separated where a program reads.

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

/// Writes to stdout. A reader that has seen enough, such as `head`, is no failure.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("write to stdout"),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints a header and its rows to stdout.
pub(super) fn print(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    say(&render(header, rows, std::io::stdout().is_terminal()))
}

fn render(header: &[&str], rows: &[Vec<String>], terminal: bool) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&header).chain(rows).collect();
    if !terminal {
        return all.iter().map(|row| row.join("\t") + "\n").collect();
    }
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let rule = widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("  ") + "\n";
    line(&header) + &rule + &rows.iter().map(line).collect::<String>()
}

/// Prints one JSON document.
pub(super) fn print_json(document: &impl Serialize) -> anyhow::Result<ExitCode> {
    say(&(serde_json::to_string_pretty(document)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// How sizes are written: for people, or as plain numbers of bytes.
#[derive(Clone, Copy)]
pub(super) struct Size {
    terminal: bool,
}

impl Size {
    pub(super) fn for_stdout() -> Self {
        Self { terminal: std::io::stdout().is_terminal() }
    }

    pub(super) fn text(self, count: i64) -> String {
        if self.terminal { bytes(count) } else { count.to_string() }
    }
}

/// A number of bytes as a person reads it, in powers of 1024.
pub(super) fn bytes(count: i64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count.unsigned_abs() < 1024 {
        return format!("{count} B");
    }
    let mut unit = 0;
    let mut tenths = i128::from(count) * 10 / 1024;
    while tenths.abs() >= 10 * 1024 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    let sign = if count < 0 { "-" } else { "" };
    format!("{sign}{}.{} {}", tenths.abs() / 10, tenths.abs() % 10, UNITS[unit])
}

/// What stands where there is nothing.
pub(super) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_for_people_and_plain_for_programs() {
        let header = ["slot", "lag"];
        let rows = [vec!["größe".to_owned(), "1 B".to_owned()], vec!["b".to_owned(), String::new()]];
        assert_eq!(render(&header, &rows, true), "slot   lag\n─────  ───\ngröße  1 B\nb\n");
        assert_eq!(render(&header, &rows, false), "slot\tlag\ngröße\t1 B\nb\t\n");
    }

    #[test]
    fn bytes_are_read_at_a_glance() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 kB"),
            (1_048_575, "1023.9 kB"),
            (16 << 20, "16.0 MB"),
            (-(3 << 30), "-3.0 GB"),
            (i64::MAX, "8191.9 PB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
