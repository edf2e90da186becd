//! What commands print: rows, aligned on a terminal and tab-separated where a program reads; pages; JSON.

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

/// Writes a line, or several, to stderr: also the words of a server, which may repeat what others wrote. If nobody
/// reads there, nobody can be told; what is done goes on.
pub(crate) fn note(text: &str) {
    let _ = std::io::stderr().write_all(lines(text).as_bytes());
}

/// Prints a header and its rows to stdout.
pub(super) fn print(header: &'static [&'static str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    Sheet::new(header).print(rows)
}

/// The widest cell on a terminal.
const CELL_MAX: usize = 60;

/// A header and rows that come page by page; the columns of a later page are never narrower. On a terminal a
/// long cell is cut.
pub(super) struct Sheet {
    terminal: bool,
    /// Until the first page.
    header: Option<&'static [&'static str]>,
    widths: Vec<usize>,
}

impl Sheet {
    /// For stdout.
    pub(super) fn new(header: &'static [&'static str]) -> Self {
        Self { terminal: std::io::stdout().is_terminal(), header: Some(header), widths: Vec::new() }
    }

    /// Prints the next rows, before the first of them the header.
    pub(super) fn print(&mut self, rows: &[Vec<String>]) -> anyhow::Result<()> {
        say(&self.render(rows))
    }

    fn render(&mut self, rows: &[Vec<String>]) -> String {
        let header = self.header.take();
        let titles: Vec<String> = header.unwrap_or_default().iter().map(|&title| title.to_owned()).collect();
        let all = || (!titles.is_empty()).then_some(&titles).into_iter().chain(rows);
        if !self.terminal {
            return all().map(|row| row.join("\t") + "\n").collect();
        }
        let rows: Vec<Vec<String>> = all().map(|row| row.iter().map(|cell| cut(cell)).collect()).collect();
        for row in &rows {
            self.widths.resize(row.len(), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let mut lines: Vec<String> = rows.iter().map(line).collect();
        if header.is_some() {
            let rule = self.widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("  ");
            lines.insert(1, rule + "\n");
        }
        lines.concat()
    }
}

fn cut(cell: &str) -> String {
    match cell.char_indices().nth(CELL_MAX) {
        None => cell.to_owned(),
        Some(_) => cell.chars().take(CELL_MAX - 1).chain(['…']).collect(),
    }
}

/// A text that others wrote, for a cell or a terminal: what is hidden is written out, so that none of it moves a
/// column or a cursor, or turns a line around.
pub(super) fn plain(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, letter| {
        if is_hidden(letter) {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
        }
        plain
    })
}

/// The same for a text whose lines stay lines.
pub(super) fn lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n") + "\n"
}

/// Whether a letter is not seen, and may change how others are: control characters, separators of lines, and those of
/// Unicode's format characters (general category Cf) that show nothing themselves.
pub(super) fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// One property a line, its name before it.
pub(super) fn page(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$} {value}").trim_end().to_owned() + "\n";
    lines.iter().map(line).collect()
}

/// Prints one JSON document.
pub(super) fn print_json(document: &impl Serialize) -> anyhow::Result<ExitCode> {
    say(&(serde_json::to_string_pretty(document)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// One JSON array, printed as its elements come, each on a line.
#[derive(Default)]
pub(super) struct JsonArray {
    begun: bool,
}

impl JsonArray {
    /// Prints the next elements.
    pub(super) fn print(&mut self, elements: &[impl Serialize]) -> anyhow::Result<()> {
        let mut text = String::new();
        for element in elements {
            text += if self.begun { ",\n" } else { "[\n" };
            text += &serde_json::to_string(element)?;
            self.begun = true;
        }
        say(&text)
    }

    /// Behind the last element.
    pub(super) fn end(self) -> anyhow::Result<()> {
        say(if self.begun { "\n]\n" } else { "[]\n" })
    }
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
        let rows = [vec!["größe".to_owned(), "1 B".to_owned()], vec!["b".to_owned(), String::new()]];
        let sheet = |terminal| Sheet { terminal, header: Some(&["slot", "lag"]), widths: Vec::new() };
        let mut people = sheet(true);
        assert_eq!(people.render(&rows), "slot   lag\n─────  ───\ngröße  1 B\nb\n");
        assert_eq!(people.render(&[vec!["c".to_owned(), "2 B".to_owned()]]), "c      2 B\n");
        let long = people.render(&[vec!["é".repeat(61), "x".to_owned()]]);
        assert_eq!(long, format!("{}…  x\n", "é".repeat(59)));
        let mut programs = sheet(false);
        assert_eq!(programs.render(&rows), "slot\tlag\ngröße\t1 B\nb\t\n");
        assert_eq!(programs.render(&[vec!["c".to_owned(), "2 B".to_owned()]]), "c\t2 B\n");
    }

    #[test]
    fn what_others_wrote_moves_no_cursor_and_turns_no_line() {
        for (text, shown) in [
            ("a\tb\u{1b}[2Jé", "a\\tb\\u{1b}[2Jé"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("E-\u{202e}24", "E-\\u{202e}24"),
            ("\u{2066}a\u{2069}\u{200f}\u{61c}", "\\u{2066}a\\u{2069}\\u{200f}\\u{61c}"),
            ("a\u{200b}b\u{feff}\u{2028}\u{e0041}", "a\\u{200b}b\\u{feff}\\u{2028}\\u{e0041}"),
            ("größe שלום 日本 e\u{301}", "größe שלום 日本 e\u{301}"),
        ] {
            assert_eq!(plain(text), shown);
            assert_eq!(plain(shown), shown, "once is enough");
        }
        assert_eq!(lines("what: why\n  cure: a\u{202e}\tb"), "what: why\n  cure: a\\u{202e}\\tb\n");
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
