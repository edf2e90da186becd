//! Each kind of fault, done.
//!
//! Before it the queue is marked with what the slot has passed: only what lies behind may arrive again. After a
//! crash of Postgres, and up to version 16 also after an orderly restart, the slot may stand further back, so that
//! is marked before the relay is let in.

use std::time::Duration;

use anyhow::Result;
use testenv::{ArmedCut, Direction, Frame, Link, Stop};

use super::fault::{Fault, Kind};
use super::quarantine;
use super::stage::Stage;

/// For a frame to be cut.
const FRAME_LIMIT: Duration = Duration::from_secs(10);

type Wanted = fn(&Frame) -> bool;

const BROKER_FRAMES: [(Direction, Wanted); 3] = [
    (Direction::ToServer, Frame::is_body),
    (Direction::ToServer, |frame| frame.is_method(60, 40)),
    (Direction::ToClient, |frame| frame.is_method(60, 80)),
];
const POSTGRES_FRAMES: [Wanted; 3] =
    [|frame| frame.is_wal(b'I'), |frame| frame.is_wal(b'C'), |frame| frame.is_wal(b'B')];

/// Does it, and mends what is the operator's to mend.
pub(super) async fn harm(stage: &mut Stage, number: usize, fault: &Fault) -> Result<()> {
    if fault.kind.breaks_consumers() {
        stage.pause_consuming().await?;
    }
    match fault.kind {
        Kind::BrokerRestarts
        | Kind::BrokerKilled
        | Kind::BrokerFreezes
        | Kind::BrokerBlocked
        | Kind::BrokerClosesConnections
        | Kind::BrokerLinkCut
        | Kind::BrokerLinkCutInFrame
        | Kind::BrokerLinkSilent => {
            stage.mark().await?;
            break_broker(stage, fault).await?;
        }
        Kind::QueueUnbound | Kind::QueueFull => {
            stage.mark().await?;
            break_queue(stage, fault).await?;
        }
        Kind::Poison => {
            stage.mark().await?;
            quarantine::poison(&stage.rig, &number.to_string()).await?;
        }
        Kind::QuarantineRetried => {
            stage.mark().await?;
            quarantine::retry(&stage.rig).await?;
        }
        Kind::PostgresRestarts
        | Kind::PostgresRestartsAtOnce
        | Kind::PostgresKilled
        | Kind::PostgresCrashes => restart_postgres(stage, fault.kind).await?,
        Kind::WalsenderTerminated
        | Kind::PostgresLinkCut
        | Kind::PostgresLinkCutInFrame
        | Kind::PostgresLinkSilent => {
            stage.mark().await?;
            break_postgres(stage, fault).await?;
        }
        Kind::RelayKilled | Kind::RelayTerminated | Kind::StandbyTakesOver => {
            break_relay(stage, fault.kind).await?;
        }
    }
    stage.consume().await
}

async fn break_broker(stage: &mut Stage, fault: &Fault) -> Result<()> {
    match fault.kind {
        Kind::BrokerRestarts => stage.pair.rabbitmq.restart().await,
        Kind::BrokerKilled => {
            stage.pair.rabbitmq.sigkill().await?;
            stage.hold(fault.hold, fault.inner).await?;
            stage.pair.rabbitmq.start_again().await
        }
        Kind::BrokerFreezes => {
            stage.pair.rabbitmq.pause()?;
            stage.hold(fault.hold, fault.inner).await?;
            stage.pair.rabbitmq.resume()
        }
        Kind::BrokerBlocked => {
            stage.pair.rabbitmq.block().await?;
            stage.hold(fault.hold, fault.inner).await?;
            stage.pair.rabbitmq.unblock().await
        }
        Kind::BrokerClosesConnections => stage.pair.rabbitmq.ctl().close_all_connections("chaos asks").await,
        Kind::BrokerLinkCut => stage.broker_link.cut().await.map(drop),
        Kind::BrokerLinkCutInFrame => {
            let (direction, wanted) = BROKER_FRAMES[fault.way];
            fire(stage.broker_link.cut_inside_frame(direction, wanted)).await;
            Ok(())
        }
        _ => {
            stage.broker_link.stall();
            stage.hold(fault.hold, fault.inner).await?;
            stage.broker_link.resume();
            Ok(())
        }
    }
}

async fn break_queue(stage: &mut Stage, fault: &Fault) -> Result<()> {
    let exchange = stage.rig.name().to_owned();
    if fault.kind == Kind::QueueUnbound {
        stage.rig.queue.unbind(&exchange, "#").await?;
        stage.hold(fault.hold, fault.inner).await?;
        stage.rig.queue.bind(&exchange, "#").await?;
        return if fault.retries() { quarantine::retry(&stage.rig).await } else { Ok(()) };
    }
    // Nobody takes anything out, so that it is full at once.
    stage.pause_consuming().await?;
    let full = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
    let pattern = format!("^{}$", stage.rig.queue.name());
    let ctl = stage.pair.rabbitmq.ctl().clone();
    ctl.run(&["set_policy", "--apply-to", "queues", "full", &pattern, full]).await?;
    stage.hold(fault.hold, fault.inner).await?;
    ctl.run(&["clear_policy", "full"]).await.map(drop)
}

async fn break_postgres(stage: &mut Stage, fault: &Fault) -> Result<()> {
    match fault.kind {
        Kind::WalsenderTerminated => stage.pair.postgres.terminate_walsenders().await.map(drop),
        Kind::PostgresLinkCut => stage.postgres_link.cut().await.map(drop),
        Kind::PostgresLinkCutInFrame => {
            fire(stage.postgres_link.cut_inside_frame(Direction::ToClient, POSTGRES_FRAMES[fault.way])).await;
            Ok(())
        }
        _ => {
            stage.postgres_link.stall();
            stage.hold(fault.hold, fault.inner).await?;
            stage.postgres_link.resume();
            Ok(())
        }
    }
}

async fn restart_postgres(stage: &mut Stage, kind: Kind) -> Result<()> {
    match kind {
        Kind::PostgresRestarts | Kind::PostgresRestartsAtOnce => {
            let mode = if kind == Kind::PostgresRestarts { Stop::Fast } else { Stop::Immediate };
            stage.pair.postgres.stop(mode).await?;
            keep_away(&stage.postgres_link).await?;
            stage.pair.postgres.start_again().await?;
        }
        Kind::PostgresKilled => {
            stage.pair.postgres.sigkill().await?;
            keep_away(&stage.postgres_link).await?;
            stage.pair.postgres.start_again().await?;
        }
        _ => {
            keep_away(&stage.postgres_link).await?;
            stage.pair.postgres.crash().await?;
        }
    }
    stage.mark_free().await?;
    stage.postgres_link.accept().await
}

/// Waits for the cut. While all is parked or the relay waits for something else there may be no such frame, and the
/// cut comes when there is one.
async fn fire(cut: ArmedCut) {
    match cut.fired(FRAME_LIMIT).await {
        Ok(cut) => println!("{:16}{cut}", ""),
        Err(_) => println!("{:16}no such frame yet", ""),
    }
}

async fn keep_away(link: &Link) -> Result<()> {
    link.refuse().await?;
    link.cut().await.map(drop)
}

async fn break_relay(stage: &mut Stage, kind: Kind) -> Result<()> {
    match kind {
        Kind::RelayKilled => {
            stage.kill().await?;
            stage.mark_free().await?;
            stage.start()
        }
        Kind::RelayTerminated => {
            stage.end().await?;
            stage.mark_free().await?;
            stage.start()
        }
        _ => {
            stage.mark().await?;
            stage.fail_over().await
        }
    }
}
