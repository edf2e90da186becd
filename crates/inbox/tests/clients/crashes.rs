//! A kill or a cut at the worst instants: nothing is lost, nothing counts twice.

use anyhow::{Result, ensure};
use testenv::{Link, Protocol, Sql, Worker};

use crate::station::{LIMIT, Language, Station};

/// Somebody else holds the row that the work writes to.
const HOLD: &str = "begin; select from report for update";

pub(crate) async fn before_the_commit(language: Language) -> Result<()> {
    let station = Station::new(language, "crash before commit").await?;
    // It has claimed the message and stands in its work.
    killed_while_it_waits(&station, HOLD).await?;
    assert_eq!(station.counter().await?, 6);
    assert_eq!(station.number("select count(*) from postrider.inbox").await?, 0);

    let worker = station.run().await?;
    station.wait_counter(7, &worker).await?;
    worker.wait_log("E-42: process", LIMIT).await?;
    station.all_acknowledged(&worker).await
}

pub(crate) async fn before_the_acknowledgement(language: Language) -> Result<()> {
    let station = Station::new(language, "crash before ack").await?;
    // The commit itself waits for who holds the lock.
    station
        .sql
        .batch_execute(
            "create function wait() returns trigger language plpgsql as
             $$ begin perform pg_advisory_xact_lock(42); return null; end $$;
             create constraint trigger wait after update on report deferrable initially deferred
                 for each row execute function wait()",
        )
        .await?;
    killed_while_it_waits(&station, "begin; select pg_advisory_xact_lock(42)").await?;
    assert_eq!(station.counter().await?, 7, "the commit came through");

    let worker = station.run().await?;
    worker.wait_log("E-42: duplicate", LIMIT).await?;
    assert_eq!(station.counter().await?, 7);
    station.all_acknowledged(&worker).await
}

pub(crate) async fn of_the_session(language: Language) -> Result<()> {
    let station = Station::new(language, "lost session").await?;
    let (holder, worker, pid) = waits(&station, HOLD).await?;
    let cut: bool = station.sql.query_one("select pg_terminate_backend($1)", &[&pid]).await?.get(0);
    ensure!(cut, "cut the worker's session");
    worker.wait_log("the session is lost", LIMIT).await?;
    holder.batch_execute("commit").await?;
    station.wait_counter(7, &worker).await?;
    assert_eq!(station.number("select attempts::bigint from postrider.inbox").await?, 1);
    station.all_acknowledged(&worker).await
}

/// A program with E-42 at work is killed where it waits for what the transaction `holding` has locked, which ends then.
async fn killed_while_it_waits(station: &Station, holding: &str) -> Result<()> {
    let (holder, worker, _) = waits(station, holding).await?;
    worker.kill().await?;
    holder.batch_execute("commit").await?;
    station.no_session().await
}

/// Who has locked something, the program that waits for it with E-42 at work, and the server's process for that.
async fn waits(station: &Station, holding: &str) -> Result<(Sql, Worker, i32)> {
    let holder = station.connect().await?;
    holder.batch_execute(holding).await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    let pid = station.blocked(&worker).await?;
    Ok((holder, worker, pid))
}

/// Python waits for two heartbeats of a minute, then comes back as well; no test waits for that.
#[tokio::test]
async fn node_does_not_wait_for_ever_to_take_leave_of_a_silent_broker() -> Result<()> {
    let mut station = Station::new(Language::Node, "silent broker").await?;
    let link = Link::start(station.scope.addresses().rabbitmq_port, Protocol::Amqp)?;
    station.amqp_url = link.through(&station.amqp_url);
    let worker = station.run().await?;
    station.send("E-1", "one").await?;
    worker.wait_log("E-1: process", LIMIT).await?;
    link.stall();
    let sessions = "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1";
    station.sql.execute(sessions, &[&station.role]).await?;
    worker.wait_log("the session is lost", LIMIT).await?;
    link.resume();
    station.send("E-2", "two").await?;
    worker.wait_log("E-2: process", LIMIT).await.map(drop)
}
