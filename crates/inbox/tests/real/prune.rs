//! Retention: what still protects from duplicates stays, however long its consumer was away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_inbox::{Error, Inbox, Message, Verdict};
use testenv::Sql;
use tokio::task::JoinSet;

use crate::place::{Place, deliver};

const DAY: Duration = Duration::from_secs(24 * 3600);
const WINDOW: Duration = Duration::from_secs(22 * 24 * 3600);
const INSIDE: Duration = Duration::from_secs(22 * 24 * 3600 - 1);

/// A message of that id completed every half hour from so many days ago to so many days ago.
async fn was_active(sql: &Sql, consumer: &str, from_days: f64, to_days: f64) -> Result<()> {
    sql.execute(
        "insert into postrider.inbox (consumer, message_id, status, received_at, completed_at)
         select $1, 'E-' || extract(epoch from at)::bigint, 'completed', at, at
         from generate_series(now() - $2 * interval '1 day', now() - $3 * interval '1 day', '30 minutes') at",
        &[&consumer, &from_days, &to_days],
    )
    .await?;
    Ok(())
}

/// The age in days of a consumer's oldest completed row.
async fn oldest(sql: &Sql, consumer: &str) -> Result<f64> {
    let query = "select (extract(epoch from now() - min(completed_at)) / 86400)::float8 from postrider.inbox
        where consumer = $1";
    Ok(sql.query_one(query, &[&consumer]).await?.get(0))
}

async fn prune_all(sql: &Sql, inbox: &Inbox, older_than: Duration) -> Result<i64> {
    let mut total = 0;
    loop {
        match inbox.prune(sql, older_than, 100).await? {
            0 => return Ok(total),
            pruned => {
                assert!(pruned <= 100, "{pruned}");
                total += pruned;
            }
        }
    }
}

#[tokio::test]
async fn an_active_consumer_loses_what_is_older_and_keeps_the_rest() -> Result<()> {
    let place = Place::new("prune", "").await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("worker");
    was_active(&sql, "worker", 30.0, 0.0).await?;
    was_active(&sql, "other", 30.0, 0.0).await?;
    let pruned = prune_all(&sql, &inbox, WINDOW).await?;
    // A half hour's step counts as the hour that it begins at most once.
    assert!((7 * 48..=8 * 48 + 1).contains(&pruned), "{pruned}");
    assert!((22.0..23.0).contains(&oldest(&sql, "worker").await?));
    assert!(oldest(&sql, "other").await? > 29.9);
    let young: String = sql
        .query_one(
            "select message_id from postrider.inbox where consumer = 'worker' order by completed_at limit 1",
            &[],
        )
        .await?
        .get(0);
    assert_eq!(deliver(&mut sql, &inbox, Message::new(&young), "").await?, Verdict::Duplicate);
    // Of all consumers.
    let rest: i64 = sql.query_one("select postrider.inbox_prune('22 days', 100000)", &[]).await?.get(0);
    assert_eq!(rest, pruned);
    Ok(())
}

#[tokio::test]
async fn a_consumer_that_was_down_loses_nothing_when_it_comes_back() -> Result<()> {
    let place = Place::new("prune after downtime", "").await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("worker");
    was_active(&sql, "worker", 75.0, 65.0).await?;
    assert_eq!(prune_all(&sql, &inbox, WINDOW).await?, 0, "while it is down");
    let last: String = sql
        .query_one("select message_id from postrider.inbox order by completed_at desc limit 1", &[])
        .await?
        .get(0);
    // It comes back: the first thing in its queue is new, the second was never acknowledged two months ago.
    assert_eq!(deliver(&mut sql, &inbox, Message::new("new"), "").await?, Verdict::Process);
    assert_eq!(prune_all(&sql, &inbox, WINDOW).await?, 0, "right after it came back");
    assert_eq!(deliver(&mut sql, &inbox, Message::new(&last), "").await?, Verdict::Duplicate);
    // Ten days before the pause and fifteen after it are more than the window.
    sql.batch_execute("delete from postrider.inbox where message_id = 'new'").await?;
    was_active(&sql, "worker", 15.0, 0.0).await?;
    let pruned = prune_all(&sql, &inbox, WINDOW).await?;
    assert!((2 * 48..=4 * 48).contains(&pruned), "{pruned}");
    Ok(())
}

#[tokio::test]
async fn pruning_inside_the_window_is_refused() -> Result<()> {
    let place = Place::new("prune inside", "").await?;
    let sql = place.connect().await?;
    let inbox = Inbox::new("worker");
    was_active(&sql, "worker", 30.0, 0.0).await?;
    let error = inbox.prune(&sql, INSIDE, 100).await.expect_err("it is inside the window");
    assert!(matches!(error, Error::InsideWindow(_)), "{error}");
    assert!(error.to_string().contains("younger than 22 days"), "{error}");
    // The window is the sum of its parts, and each consumer's own.
    sql.batch_execute(
        "insert into postrider.inbox_window (consumer, redelivery, resubmission, replay)
         values ('worker', '1 day', '2 days', '3 days'), ('slow', '1 day', '60 days', '3 days')",
    )
    .await?;
    assert!(prune_all(&sql, &inbox, 6 * DAY).await? > 23 * 48);
    let shorter = "update postrider.inbox_window set replay = '-4 days'";
    assert!(sql.batch_execute(shorter).await.is_err(), "no part shortens the others");
    assert!(inbox.prune(&sql, 5 * DAY, 100).await.is_err());
    was_active(&sql, "slow", 70.0, 0.0).await?;
    assert!(Inbox::new("slow").prune(&sql, WINDOW, 100).await.is_err());
    Ok(())
}

#[tokio::test]
async fn claims_do_not_wait_for_a_prune_and_no_duplicate_comes_through() -> Result<()> {
    let place = Place::new("prune under load", "").await?;
    let sql = place.connect().await?;
    let fill = "insert into postrider.inbox (consumer, message_id, status, received_at, completed_at)
        select 'worker', 'E-' || n, 'completed', at, at
        from generate_series(1, 20000) n, lateral (select now() - interval '60 days' * (1 - n / 20000.0)) as t (at)";
    sql.batch_execute(fill).await?;
    let (stop, mut claimers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for claimer in 0..4 {
        let (mut sql, stop) = (place.connect().await?, Arc::clone(&stop));
        // Whoever waits longer for a lock of the prune fails.
        sql.batch_execute("set lock_timeout = '100ms'").await?;
        claimers.spawn(async move {
            let inbox = Inbox::new("worker");
            let mut claims = 0;
            while !stop.load(Relaxed) {
                // The last 20 of the 60 days, each claimer those of its own; and what is new.
                let come_again = format!("E-{}", 20_000 - (claims * 4 + claimer) % 6600);
                let verdict = deliver(&mut sql, &inbox, Message::new(&come_again), "").await?;
                ensure!(verdict == Verdict::Duplicate, "{come_again} is {verdict:?}");
                let new = format!("new-{claimer}-{claims}");
                let verdict = deliver(&mut sql, &inbox, Message::new(&new), "").await?;
                ensure!(verdict == Verdict::Process, "{new} is {verdict:?}");
                claims += 1;
            }
            Ok(claims)
        });
    }
    let pruned = prune_all(&sql, &Inbox::new("worker"), WINDOW).await?;
    stop.store(true, Relaxed);
    while let Some(claims) = claimers.join_next().await {
        assert!(claims?? > 0);
    }
    // 38 days of 60.
    assert!((12_000..12_700).contains(&pruned), "{pruned}");
    Ok(())
}

#[tokio::test]
async fn what_failed_or_is_being_handled_is_kept() -> Result<()> {
    let place = Place::new("prune keeps", "").await?;
    let sql = place.connect().await?;
    was_active(&sql, "worker", 30.0, 0.0).await?;
    sql.batch_execute(
        "insert into postrider.inbox (consumer, message_id, status, received_at)
         select 'worker', s, s, now() - interval '90 days'
         from unnest(array['received', 'processing', 'failed']) s",
    )
    .await?;
    assert!(prune_all(&sql, &Inbox::new("worker"), WINDOW).await? > 0);
    let kept =
        "select count(*) from postrider.inbox where message_id in ('received', 'processing', 'failed')";
    assert_eq!(place.number(kept).await?, 3);
    Ok(())
}

#[tokio::test]
async fn lookups_go_by_index() -> Result<()> {
    let place = Place::new("explain", "").await?;
    let sql = place.connect().await?;
    was_active(&sql, "worker", 200.0, 0.0).await?;
    let queries = [
        (
            "select status from postrider.inbox where consumer = 'w' and source = ''
             and message_id = 'E'",
            "inbox_pkey",
        ),
        (
            "select completed_at from postrider.inbox where consumer = 'worker' and status = 'completed'
             and completed_at <= now() - interval '3 days' order by completed_at desc limit 1",
            "inbox_completed",
        ),
        (
            "select ctid from postrider.inbox where consumer = 'worker' and status = 'completed'
             and completed_at < now() - interval '190 days' order by completed_at limit 100
             for update skip locked",
            "inbox_completed",
        ),
    ];
    // Without statistics, as in a table that was filled a moment ago, and with them.
    for prepare in ["select", "analyze postrider.inbox"] {
        sql.batch_execute(prepare).await?;
        for (query, index) in queries {
            let plan = sql.query(&format!("explain (costs off) {query}"), &[]).await?;
            let plan: Vec<&str> = plan.iter().map(|row| row.get(0)).collect();
            let plan = plan.join("\n");
            let sorted = plan.contains("Sort") || plan.contains("Aggregate");
            assert!(plan.contains(index) && !plan.contains("Seq Scan") && !sorted, "{plan}");
        }
    }
    Ok(())
}
