//! The relay is told to end.

use anyhow::{Context as _, Result, ensure};
use std::time::Duration;

use crate::scene::play;
use crate::setting::Setting;

#[tokio::test]
async fn a_relay_that_is_told_to_end_leaves_nothing_to_repeat() -> Result<()> {
    play("drain", Setting::default(), async |scene| {
        scene.begin().await?;
        for _ in 0..3 {
            scene.wait_published(200).await?;
            // Within `limits.drain_timeout_ms`, which is ten seconds.
            scene.end(Duration::from_secs(15)).await?;
            let slot = scene.rig.slot().await?;
            ensure!(slot.active_pid.is_none(), "leave the slot");
            let log = scene.relay().log();
            let said = log
                .iter()
                .find(|line| line.contains("the slot stands"))
                .context("read where the slot stands")?;
            let stands = format!("position={}", slot.confirmed_flush_lsn);
            ensure!(said.contains(&stands), "find {stands} in {said:?}");
            scene.start().await?;
        }
        // Without a mark no copy is forgiven.
        scene.settle().await.map(drop)
    })
    .await
}
