//! The README's tables are those of the code.

use std::fmt::Write;

use crate::config::readme_rows;
use crate::metrics::{Kind, METRICS};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// The rows of the README's section `heading` that begin with a name in backticks.
fn found(heading: &str) -> String {
    let readme = std::fs::read_to_string(README).expect("read the README");
    let section = readme.lines().skip_while(|line| *line != heading).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    section.filter(|line| line.starts_with("| `")).fold(String::new(), |rows, row| rows + row + "\n")
}

fn metrics_rows() -> String {
    METRICS.iter().fold(String::new(), |mut rows, metric| {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram { .. } => "histogram",
        };
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        writeln!(rows, "| `{}` | {kind} | {labels} | {} |", metric.name, metric.help)
            .expect("text takes text");
        rows
    })
}

#[test]
fn the_metrics_table_is_that_of_the_code() {
    let expected = metrics_rows();
    assert_eq!(
        found("## Metrics"),
        expected,
        "README.md, section Metrics, has to have these rows:\n{expected}"
    );
}

#[test]
fn the_configuration_table_is_that_of_the_code() {
    let expected = readme_rows();
    assert_eq!(
        found("## Configuration"),
        expected,
        "README.md, section Configuration, has to have these rows:\n{expected}"
    );
}
