//! Nothing is owed, so the slot follows the server's log (P7), whoever writes it.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use testenv::Sql;
use tokio_postgres::types::PgLsn;

use crate::scene::play;
use crate::setting::Setting;

const BYTES: u64 = 300_000_000;

/// Writes rows of a megabyte that no publication covers; returns how much log that was.
async fn fill(sql: &Sql) -> Result<u64> {
    let end = async || -> Result<u64> {
        let lsn: PgLsn = sql.query_one("select pg_current_wal_flush_lsn()", &[]).await?.get(0);
        Ok(lsn.into())
    };
    let began = end().await?;
    sql.batch_execute(
        "create table filler (text text);
         alter table filler alter column text set storage external;
         insert into filler select repeat('x', 1000000) from generate_series(1, 300);",
    )
    .await
    .context("fill a table")?;
    Ok(end().await? - began)
}

#[tokio::test]
async fn an_idle_slot_follows_what_others_write() -> Result<()> {
    play("P7", Setting::default(), async |scene| {
        scene.start().await?;
        scene.wait_followed().await?;
        let other = scene.rig.scope.named("other");
        scene.servers.postgres.create_database(&other).await?;
        for (what, sql) in [
            ("another table", scene.rig.sql().await?),
            ("another database", scene.servers.postgres.connect(&other).await?),
        ] {
            let written = fill(&sql).await?;
            ensure!(written >= BYTES, "write {BYTES} bytes of log: only {written}");
            let began = Instant::now();
            scene.wait_followed().await?;
            println!("{what}: {written} bytes of log, followed after {:.1?}", began.elapsed());
        }
        // A row behind might crash the server, and would have to wait until all of it is recovered.
        scene.rig.sql().await?.batch_execute("checkpoint").await?;
        scene.write();
        scene.settle().await.map(drop)
    })
    .await
}
