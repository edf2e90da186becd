//! The publication changes while the relay runs, and the server skips events in silence: the slot must not pass them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testenv::consumer::Consumer;
use testenv::install;
use testenv::oracle::judge;

use crate::scene::{LIMIT, play};
use crate::setting::Setting;

/// The relay looks every second.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// What an administrator might do; `{p}` is the publication.
const CHANGES: [(&str, &str); 4] = [
    ("dropped", "drop publication {p}"),
    ("without the table", "alter publication {p} drop table postrider.outbox"),
    ("without inserts", "alter publication {p} set (publish = 'update')"),
    (
        "with a filter",
        "alter publication {p} set table postrider.command, postrider.outbox where (event_type = 'paid')",
    ),
];

async fn stops(version: &str, setting: impl Fn() -> Setting) -> Result<()> {
    for (what, change) in CHANGES {
        play(&format!("publication {what}, PostgreSQL {version}"), setting(), async |scene| {
            scene.watch_commits().await?;
            scene.begin().await?;
            let change = change.replace("{p}", scene.rig.name());
            scene.rig.sql().await?.batch_execute(&change).await?;
            let changed = Instant::now();
            let mut writer = scene.writer.take().expect("it has begun");
            writer.wait_events(100, LIMIT).await?;
            let exit = scene.relay().wait_exit(STOP_LIMIT).await?;
            println!("{what}, PostgreSQL {version}: {exit} after {:.1?}", changed.elapsed());
            ensure!(exit.code() == Some(1), "stop with exit code 1: {exit}");
            let said = format!("publication {}", scene.rig.name());
            let log = scene.relay().log_text();
            ensure!(log.contains(&said) && log.contains("cure: "), "name the publication and the cure");
            writer.stop().await?;

            let consumer = Consumer::start(&scene.rig.queue).await?;
            consumer.wait_quiet(Duration::from_millis(500), LIMIT).await?;
            let slot = scene.rig.slot().await?;
            scene.ensure_nothing_passed(&slot, &consumer).await?;
            let verdict = judge(&scene.rig.truth().await?, &consumer.stop().await?, &[]);
            ensure!(!verdict.lost.is_empty(), "write events that the changed publication hides");
            // The positions are not judged: a filter hides rows that a position counts.
            let kept =
                verdict.ghosts.is_empty() && verdict.out_of_order.is_empty() && verdict.duplicates == 0;
            ensure!(kept && verdict.delivered > 0, "deliver what was read, and nothing else:\n{verdict}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_publication_that_is_changed_stops_the_relay() -> Result<()> {
    stops("of the system", Setting::default).await
}

#[tokio::test]
async fn a_publication_that_is_changed_stops_the_relay_on_18() -> Result<()> {
    let bin = install::postgres_18()?;
    stops("18", || Setting { postgres: Some(bin.clone()), ..Setting::default() }).await
}
