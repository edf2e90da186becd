//! `postrider parked`: what a consumer has parked is looked at without harm, and goes back with its own id.

use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postrider_inbox::consumer::Event;
use serde_json::Value as Json;
use testenv::consumer::{QueueKind, publish};
use testenv::{Direction, Link, Protocol};

use crate::BINARY;
use crate::station::{LIMIT, Station, parcel};

#[tokio::test]
async fn a_parked_message_goes_back_as_it_was_and_is_handled_once() -> Result<()> {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let station = Station::new("parked back", kind).await?;
        station.park(&["E-1"]).await?;
        station.park(&["E-2"]).await?;
        station.park(&["E-3"]).await?;
        for _ in 0..2 {
            ensure!(station.listed().await? == ["E-1", "E-2", "E-3"]);
        }
        let listed = station.call("list --id E-2", 0).await?.stdout;
        let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
        ensure!(rows.len() == 2 && rows[1][..4] == ["E-2", "placed", "exhausted", "2"], "{listed}");
        ensure!(rows[1][5] == station.queue.name() && rows[1][8] == "no paper", "{listed}");
        let shown = station.call("show --id E-2 --payload --json", 0).await?.stdout;
        let shown: Json = serde_json::from_str(&shown)?;
        let own = serde_json::json!({"aggregate_seq": 7, "traceparent": "00-é", "urgent": true});
        ensure!(shown[0]["headers"] == own && shown[0]["payload"] == "452d3200ff", "{shown}");
        ensure!(shown[0]["routing_key"] == station.queue.name() && shown[0]["exchange"] == "", "{shown}");
        ensure!(shown[0]["consumer"] == "worker", "{shown}");
        let page = station.call("show --id E-2", 0).await?.stdout;
        ensure!(page.contains("first failure 2") && !page.contains("452d32"), "{page}");

        // Its inbox counts on: another failure would park it at once.
        station.work.mended.store(true, SeqCst);
        let refused = station.call("retry --id E-2", 1).await?;
        let cure = "`postrider inbox retry --consumer=worker --id=E-2`";
        ensure!(refused.stderr.contains("E-2 stays parked") && refused.stderr.contains(cure), "{refused}");
        let retry = ["inbox", "retry", "--consumer", "worker", "--id", "E-2"];
        station.program.expect(&retry).await?;
        let sent = station.call("retry --id E-2", 0).await?.stdout;
        ensure!(sent == format!("sent E-2 to queue {:?}\n", station.queue.name()), "{sent}");
        station.wait_handled(&["E-2"]).await?;
        ensure!(station.listed().await? == ["E-1", "E-3"]);

        let sent = station.call("retry --all --consumer worker --json", 0).await?.stdout;
        let sent: Json = serde_json::from_str(&sent)?;
        ensure!(sent[1]["message_id"] == "E-3" && sent[1]["became"] == "sent", "{sent}");
        station.wait_handled(&["E-1", "E-2", "E-3"]).await?;
        ensure!(station.parking.left().await? == 0 && station.listed().await?.is_empty());
        let none = station.call("retry --all --consumer worker", 1).await?;
        ensure!(none.stderr.contains("find such a message"), "{none}");
        {
            let seen = station.work.seen.lock().expect("no holder panics");
            for id in ["E-1", "E-2", "E-3"] {
                let of_it: Vec<&Event> = seen.iter().filter(|event| event.message_id == id).collect();
                ensure!(of_it.len() == 3 && of_it[0].body == of_it[2].body, "{of_it:?}");
                ensure!(of_it[0].properties == of_it[2].properties, "{of_it:?}");
            }
        }
        station.end().await?;
    }
    Ok(())
}

#[tokio::test]
async fn many_looks_change_no_order_and_are_counted_by_a_quorum_queue() -> Result<()> {
    let station = Station::new("parked looks", QueueKind::Quorum).await?;
    let ids: Vec<String> = (0..40).map(|number| format!("E-{number}")).collect();
    let parcels = ids.iter().map(|id| parcel(id)).collect();
    publish(station.parking.url(), "", station.parking.name(), parcels).await?;
    for _ in 0..10 {
        let some = station.call("list --limit 15", 0).await?;
        ensure!(some.stdout.lines().count() == 16, "{some}");
        ensure!(some.stderr.contains("the first 15 of 40 messages"), "{some}");
        ensure!(!some.stderr.contains("x-delivery-limit"), "{some}");
    }
    let warned = station.call("list --limit 15", 0).await?;
    ensure!(warned.stderr.contains("handed a message out 10 times"), "{warned}");
    ensure!(station.listed().await? == ids);
    // Of what is taken from the middle, the others keep their places.
    station.call("discard --id E-7 --id E-20 --unmarked --yes", 0).await?;
    let left: Vec<String> = ids.into_iter().filter(|id| id != "E-7" && id != "E-20").collect();
    ensure!(station.listed().await? == left);
    station.end().await
}

#[tokio::test]
async fn killed_between_confirm_and_acknowledgement_it_is_still_parked_and_handled_once() -> Result<()> {
    let station = Station::new("parked killed", QueueKind::Quorum).await?;
    station.park(&["E-1"]).await?;
    station.work.mended.store(true, SeqCst);

    let link = Link::start(station.scope.addresses().rabbitmq_port, Protocol::Amqp)?;
    let victim: Arc<OnceLock<Pid>> = Arc::default();
    let theirs = Arc::clone(&victim);
    // It is sent when the confirm is in.
    let cut = link.cut_inside_frame(Direction::ToServer, move |frame| {
        let ack = frame.is_method(60, 80);
        if ack && let Some(pid) = theirs.get() {
            kill(*pid, Signal::SIGKILL).expect("the program runs");
        }
        ack
    });
    let mut command = tokio::process::Command::new(BINARY);
    command.env("POSTRIDER_POSTGRES_URL", station.scope.admin_url());
    command.env("POSTRIDER_RABBITMQ_URL", link.through(&station.scope.amqp_url()));
    command.args(["parked", "retry", "--queue", station.parking.name(), "--all", "--consumer", "worker"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()?;
    let pid = child.id().context("it runs")?;
    victim.set(Pid::from_raw(pid.cast_signed())).expect("it is set once");
    cut.fired(LIMIT).await?;
    let status = child.wait().await?;
    ensure!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(9), "{status}");

    station.wait_handled(&["E-1"]).await?;
    ensure!(station.parking.left().await? == 1 && station.listed().await? == ["E-1"]);
    let sent = station.call("retry --all", 0).await?;
    ensure!(sent.stdout.starts_with("sent E-1 "), "{sent}");
    station.wait("the second copy to be a duplicate", || station.tally.counts().duplicates == 1).await?;
    ensure!(station.parking.left().await? == 0 && station.handled().await? == ["E-1"]);
    station.end().await
}
