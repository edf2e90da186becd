//! Log lines on stderr: what the operator reads. Never a payload, never a secret.
//!
//! Libraries below us log at will, and at some levels they log messages with their bodies or
//! statements with their parameters. [`ceiling`] keeps those levels off, whatever is configured.

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, registry};

use crate::config::{Log, LogFormat};

/// From here on, everything that is logged goes to stderr.
pub(crate) fn init(log: &Log) {
    let subscriber = registry().with(layer(log, std::io::stderr));
    subscriber.try_init().expect("the log is set up once");
}

/// Whether `level` is a level, or a level and overrides by target.
pub(crate) fn check(level: &str) -> Result<(), String> {
    directives(level).map(|_| ())
}

fn layer<S, W>(log: &Log, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    let wanted = directives(&log.level).unwrap_or_default();
    lines
        .with_filter(wanted)
        .with_filter(filter_fn(|metadata| *metadata.level() <= ceiling(metadata.target())))
}

/// Libraries whose failures we report in our own words, once, where they are handled.
const QUIET: [&str; 3] = ["lapin", "pgwire_replication", "async_rs"];

fn directives(text: &str) -> Result<Targets, String> {
    let mut own = None;
    let mut overrides = Vec::new();
    for word in text.split(',').map(str::trim) {
        match word.split_once('=') {
            Some((target, level)) => overrides.push((target, level_of(level)?)),
            None => own = Some(level_of(word)?),
        }
    }
    let own = own.ok_or_else(|| "the level itself is missing".to_owned())?;
    let targets = Targets::new().with_default(own.min(LevelFilter::WARN)).with_target("postrider", own);
    Ok(targets.with_targets(QUIET.map(|target| (target, LevelFilter::OFF))).with_targets(overrides))
}

fn level_of(word: &str) -> Result<LevelFilter, String> {
    Ok(match word {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return Err(format!("{word:?} is no level")),
    })
}

/// The most verbose level a target may have at all.
fn ceiling(target: &str) -> LevelFilter {
    const CEILINGS: [(&str, LevelFilter); 4] = [
        // A returned message, with its body.
        ("lapin::returned_messages", LevelFilter::OFF),
        // Frames, with bodies and, at login, with the password.
        ("lapin", LevelFilter::DEBUG),
        ("amq_protocol", LevelFilter::DEBUG),
        // Statements, with their parameters.
        ("tokio_postgres", LevelFilter::INFO),
    ];
    let found = CEILINGS.iter().find(|(prefix, _)| target.starts_with(prefix));
    found.map_or(LevelFilter::TRACE, |(_, ceiling)| *ceiling)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(&Log { format, level: level.to_owned() }, move || writer.clone());
        tracing::subscriber::with_default(registry().with(layer), log);
        let bytes = lines.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    fn everybody_speaks() {
        tracing::warn!(target: "lapin::returned_messages", "the body");
        tracing::trace!(target: "lapin::channels", "the frame");
        tracing::error!(target: "lapin::io_loop", "lapin failed");
        tracing::debug!(target: "tokio_postgres::query", "the parameters");
        tracing::warn!(target: "tokio_postgres::connection", "a notice");
        tracing::info!(target: "hyper", "a request");
        tracing::info!(target: "postrider_postgres::slot", "our word");
        tracing::debug!(target: "postrider", "our detail");
    }

    #[test]
    fn what_may_hold_a_payload_is_never_logged() {
        for (level, expected) in [
            ("off", &[][..]),
            ("info", &["a notice", "our word"][..]),
            ("debug", &["a notice", "our word", "our detail"]),
            ("lapin=warn, info", &["lapin failed", "a notice", "our word"]),
            (
                "trace,lapin=trace,lapin::returned_messages=trace,tokio_postgres=trace,hyper=info",
                &["lapin failed", "a notice", "a request", "our word", "our detail"],
            ),
        ] {
            let text = logged(LogFormat::Text, level, everybody_speaks);
            assert_eq!(text.lines().count(), expected.len(), "{level}: {text}");
            for line in expected {
                assert!(text.contains(line), "{level}: {text}");
            }
        }
    }

    #[test]
    fn a_json_line_is_one_object() {
        let text = logged(LogFormat::Json, "info", || {
            tracing::info!(target: "postrider", position = %"0/1/2", "two\nlines");
        });
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one object");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["target"], "postrider");
        assert_eq!(line["message"], "two\nlines");
        assert_eq!(line["position"], "0/1/2");
        assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_level_that_is_none_is_refused() {
        for (level, wrong) in [
            ("verbose", "\"verbose\" is no level"),
            ("", "\"\" is no level"),
            ("lapin=warn", "the level itself is missing"),
            ("info,lapin", "\"lapin\" is no level"),
            ("info,lapin=loud", "\"loud\" is no level"),
        ] {
            assert_eq!(check(level), Err(wrong.to_owned()));
        }
    }
}
