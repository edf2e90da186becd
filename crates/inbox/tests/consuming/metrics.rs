//! What the consumer counts is in the program's metrics, under the names of the README.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::messages::Work;
use crate::station::{Station, message, numbered};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

#[tokio::test]
async fn what_is_counted_is_in_the_metrics_of_the_program() -> Result<()> {
    let mut station = Station::new("loop metrics").await?;
    station.settings.attempts = 3;
    station.settings.check_sequence = true;
    let mut other = message("E-1", "good");
    other.body = b"another body".to_vec();
    station
        .publish(vec![
            message("E-1", "good"),
            message("E-1", "good"),
            other,
            message("E-2", "twice"),
            message("E-3", "unique"),
            numbered("o", 2, "good"),
        ])
        .await?;
    let mut stale = numbered("o", 1, "good");
    stale.properties.message_id = Some("late".to_owned());

    let recorder = PrometheusBuilder::new().set_buckets(&[1.0])?.build_recorder();
    let running = metrics::with_local_recorder(&recorder, || station.run(Work::default()));
    let zero = recorder.handle().render();
    running.wait("two to be parked", |counts| counts.parked == 2 && counts.handled == 3).await?;
    station.publish(vec![stale, numbered("o", 4, "good")]).await?;
    running.wait("an early and a stale one", |counts| counts.stale == 1 && counts.early > 0).await?;
    let at_work = recorder.handle().render();
    let counts = running.stop().await?;

    let page = recorder.handle().render();
    let labels = format!("{{consumer=\"worker\",queue=\"{}\"}}", station.queue.name());
    for (name, expected) in [
        ("handled_total", 3),
        ("duplicates_total", 1),
        ("mismatches_total", 1),
        ("early_total", counts.early),
        ("stale_total", 1),
        ("retries_total", 4),
        ("parked_total", 2),
        ("unique_violations_total", 3),
        ("in_progress", 0),
        ("connected", 0),
        ("handler_seconds_count", 8),
    ] {
        let line = format!("postrider_inbox_{name}{labels} {expected}");
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(at_work.contains(&format!("postrider_inbox_connected{labels} 1\n")), "{at_work}");
    // A rate has a zero to start from.
    assert!(zero.contains(&format!("postrider_inbox_parked_total{labels} 0")), "{zero}");
    assert_eq!(rows_of_the_readme()?, rows(&page), "README.md, section The inbox, has to have these rows");
    Ok(())
}

/// The page's metrics, as rows of the README.
fn rows(page: &str) -> BTreeSet<String> {
    let mut help = "";
    let mut rows = BTreeSet::new();
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|text| text.split_once(' '))
        {
            rows.insert(format!("| `{name}` | {kind} | {help} |"));
        }
    }
    rows
}

fn rows_of_the_readme() -> Result<BTreeSet<String>> {
    let readme = std::fs::read_to_string(README).context("read the README")?;
    Ok(readme.lines().filter(|line| line.starts_with("| `postrider_inbox_")).map(str::to_owned).collect())
}
