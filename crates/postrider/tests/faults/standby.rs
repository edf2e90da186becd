//! Two relays on one slot.

use std::time::Instant;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::scene::{LIMIT, Scene, survives};
use crate::setting::Setting;

/// Starts a second relay beside the one that has the slot.
async fn stand_by(scene: &mut Scene) -> Result<()> {
    scene.relays.push(scene.program.run()?);
    scene.relay().wait_reason("standby", LIMIT).await?;
    let page = scene.relay().get("/readyz?standby=ok").await?;
    ensure!(page.status == 200, "ask a standby whether it is one: {page:?}");
    Ok(())
}

#[tokio::test]
async fn a_standby_takes_over() -> Result<()> {
    survives("standby", Setting::default(), async |scene| {
        stand_by(scene).await?;
        let [active, standby] = &mut scene.relays[..] else { unreachable!("there are two") };
        active.kill().await?;
        let killed = Instant::now();
        standby.wait_ready(LIMIT).await?;
        println!("taken over after {:.2?}", killed.elapsed());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_relay_that_froze_makes_way_when_it_thaws() -> Result<()> {
    let setting = Setting { session: vec!["wal_sender_timeout=4s"], ..Setting::default() };
    survives("frozen relay", setting, async |scene| {
        stand_by(scene).await?;
        let [frozen, standby] = &mut scene.relays[..] else { unreachable!("there are two") };
        frozen.signal(Signal::SIGSTOP)?;
        standby.wait_ready(LIMIT).await?;
        // For a moment both publish, each in order.
        frozen.signal(Signal::SIGCONT)?;
        frozen.wait_reason("standby", LIMIT).await
    })
    .await
}
