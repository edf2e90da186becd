//! Consumers that are killed, connections that are cut, sessions that are terminated: everything adds up.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use postrider_inbox::Inbox;
use postrider_inbox::consumer::Urls;
use testenv::{Link, Protocol};
use tokio::time::sleep;

use crate::messages::Work;
use crate::station::{Station, numbered};

const AGGREGATES: i64 = 8;
const NUMBERS: i64 = 60;

#[tokio::test]
async fn nothing_is_lost_or_done_twice_through_kills_and_cuts() -> Result<()> {
    let station = Station::new("loop crashes").await?;
    let mut rng = Rng::with_seed(5);
    let mut parcels = Vec::new();
    for seq in 1..=NUMBERS {
        for aggregate in 0..AGGREGATES {
            let parcel = numbered(&format!("o{aggregate}"), seq, "good");
            if rng.u32(..10) < 3 {
                parcels.push(parcel.clone());
            }
            parcels.push(parcel);
        }
    }
    station.publish(parcels).await?;
    let broker = Link::start(station.scope.addresses().rabbitmq_port, Protocol::Amqp)?;
    let urls = Urls { broker: broker.through(&station.urls.broker), ..station.urls.clone() };
    let run = || {
        let work = Work { takes: Duration::from_millis(5), ..Work::default() };
        station.run_as(Inbox::new("worker"), urls.clone(), work)
    };

    let mut running = run();
    let mut handled = 0;
    for fault in 0..12 {
        // Each fault hits a consumer at work.
        let target = handled + 20;
        testenv::eventually("more to be handled", crate::station::LIMIT, async || {
            handled = station.number("select count(*) from handled").await?;
            Ok((handled >= target).then_some(()))
        })
        .await?;
        sleep(Duration::from_millis(rng.u64(..30))).await;
        match fault % 4 {
            // Where it stands: transactions open, nothing acknowledged. As the kernel does for a process
            // that dies, the connections go first.
            0 => {
                broker.refuse().await?;
                broker.cut().await?;
                drop(running);
                broker.accept().await?;
                running = run();
            }
            1 => drop(broker.cut().await?),
            2 => {
                running.stop().await?;
                running = run();
            }
            _ => {
                let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                    where datname = current_database() and pid <> pg_backend_pid()";
                station.number(others).await?;
            }
        }
    }
    station.wait_number("select count(*) from handled", AGGREGATES * NUMBERS).await?;
    testenv::eventually("the queue to be empty", crate::station::LIMIT, async || {
        Ok((station.queue.depth().await? == 0).then_some(()))
    })
    .await?;
    running.stop().await?;
    assert_eq!(station.queue.left().await?, 0);
    for aggregate in 0..AGGREGATES {
        let numbers = station.handled(&format!("o{aggregate}")).await?;
        assert_eq!(numbers, (1..=NUMBERS).collect::<Vec<_>>(), "o{aggregate}");
    }
    assert_eq!(station.open_parking().await?.depth().await?, 0);
    Ok(())
}
