//! `postrider doctor`: whether a relay could run safely here, and what mends it where it could not.

mod postgres;
mod rabbitmq;

use std::fmt::Write;
use std::process::ExitCode;

use serde::Serialize;

use super::table;
use crate::config::Config;
use crate::metrics::Side;

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// `postgres` or `broker`.
    side: &'static str,
    level: Level,
    /// What was found.
    what: String,
    /// What follows from it; empty where nothing does.
    why: String,
    /// The statements and commands that mend it, in order.
    cure: Vec<String>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// A relay runs, and this should be mended.
    Warning,
    /// No relay could run safely.
    Error,
}

impl Finding {
    fn new(side: Side, level: Level, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { side: side.as_str(), level, what: what.into(), why: why.into(), cure: Vec::new() }
    }

    fn cure(mut self, step: impl Into<String>) -> Self {
        self.cure.push(step.into());
        self
    }
}

/// Looks at both sides at once; exit code 1 if there is an error among the findings.
pub(crate) async fn doctor(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    let (mut findings, broker) = tokio::join!(postgres::look(config), rabbitmq::look(config));
    findings.extend(broker);
    if json {
        table::print_json(&findings)?;
    } else {
        table::say(&report(&findings))?;
    }
    let safe = findings.iter().all(|finding| finding.level != Level::Error);
    Ok(if safe { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let why = if finding.why.is_empty() { String::new() } else { format!(": {}", finding.why) };
        writeln!(text, "{level:<8} {:<9} {}{why}", finding.side, finding.what).expect("text takes text");
        for step in &finding.cure {
            writeln!(text, "  cure: {step}").expect("text takes text");
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let verdict = match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => "a relay can run safely".to_owned(),
        (0, warnings) => format!("a relay can run; warnings: {warnings}"),
        (errors, _) => format!("no relay can run safely; errors: {errors}"),
    };
    text + &verdict + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_ends_with_its_verdict() {
        let fine = || Finding::new(Side::Broker, Level::Ok, "the broker takes messages", "");
        let wrong = || {
            Finding::new(Side::Postgres, Level::Error, "no slot", "nothing to read").cure("postrider init")
        };
        let odd = || Finding::new(Side::Postgres, Level::Warning, "no limit", "it waits for ever");
        assert_eq!(
            report(&[wrong(), fine()]),
            "error    postgres  no slot: nothing to read\n  cure: postrider init\n\
             ok       broker    the broker takes messages\nno relay can run safely; errors: 1\n"
        );
        assert!(report(&[odd(), fine()]).ends_with("a relay can run; warnings: 1\n"));
        assert!(report(&[fine()]).ends_with("a relay can run safely\n"));
    }
}
