//! A million rows are pruned while others claim: new messages, and some that come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_inbox::{Inbox, Message, Verdict};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Place;
use crate::times::Times;

const OLD_ROWS: i64 = 1_000_000;
const YOUNG_ROWS: i64 = 100_000;
const BATCH: i32 = 1000;
const CLAIMERS: usize = 4;
/// Between two claims of one claimer.
const PAUSE: Duration = Duration::from_millis(4);
const ALONE: Duration = Duration::from_secs(20);
const WINDOW: Duration = Duration::from_secs(22 * 24 * 3600);
/// Old rows are 24 to 60 days old, the young ones less than 21. The window is 22 days, and what is pruned stops
/// within an hour of it.
const FILL: &str = "
    insert into postrider.inbox (consumer, message_id, status, received_at, completed_at)
        select 'worker', 'old-' || n, 'completed', at, at
        from generate_series(1, $1::bigint) n, lateral (select now() - '60 days'::interval + '36 days'::interval * n / $1) as t (at)";
const FILL_YOUNG: &str = "
    insert into postrider.inbox (consumer, message_id, status, received_at, completed_at)
        select 'worker', 'young-' || n, 'completed', at, at
        from generate_series(1, $1::bigint) n, lateral (select now() - '24 days'::interval * (1 - n::float8 / $1)) as t (at)";
const KEPT: &str = "
    insert into postrider.inbox (consumer, message_id, status, received_at)
        select 'worker', s || n, s, now() - '50 days'::interval
        from generate_series(1, 500) n, unnest(array['failed', 'processing']) s";

pub(crate) async fn run() -> Result<()> {
    let place = Place::start().await?;
    let sql = place.connect().await?;
    for (fill, rows) in [(FILL, OLD_ROWS), (FILL_YOUNG, YOUNG_ROWS)] {
        sql.execute(fill, &[&rows]).await.context("fill the inbox")?;
    }
    sql.batch_execute(KEPT).await?;
    sql.batch_execute("vacuum analyze postrider.inbox").await?;
    // Not a part of the measurement.
    sql.batch_execute("checkpoint").await?;

    let stop = Arc::new(AtomicBool::new(false));
    let mut alone = claim(&place, "alone", &stop);
    sleep(ALONE).await;
    let (mut alone_times, alone_transactions) = end(&mut alone, &stop).await?;

    stop.store(false, Relaxed);
    let mut beside = claim(&place, "beside", &stop);
    let (inbox, begun) = (Inbox::new("worker"), Instant::now());
    let (mut pruned, mut calls) = (0, Times::default());
    loop {
        let call = Instant::now();
        let deleted = inbox.prune(&sql, WINDOW, BATCH).await?;
        calls.push(call.elapsed());
        if deleted == 0 {
            break;
        }
        pruned += deleted;
    }
    let took = begun.elapsed();
    let (mut times, transactions) = end(&mut beside, &stop).await?;

    println!("prune: {pruned} rows in {:.1} s, {} calls of {BATCH}", took.as_secs_f64(), calls.len());
    println!("{:<44}{}", "  a call", calls.summary());
    for (name, times) in [
        ("  claims alone", &mut alone_times),
        ("  their transactions", &mut { alone_transactions }),
        ("  claims beside the prune", &mut times),
        ("  their transactions", &mut { transactions }),
    ] {
        let name = format!("{name} ({})", times.len());
        println!("{name:<44}{}", times.summary());
    }
    for (query, expected) in [
        ("select count(*) from postrider.inbox where message_id like 'old-%'", 0..=0),
        ("select count(*) from postrider.inbox where status in ('failed', 'processing')", 1000..=1000),
        // Of the 24 days of young rows the 22 of the window stay, and at most what an hour adds.
        (
            "select count(*) from postrider.inbox where message_id like 'young-%'",
            YOUNG_ROWS * 22 / 24..=YOUNG_ROWS * 23 / 24,
        ),
    ] {
        let found: i64 = sql.query_one(query, &[]).await?.get(0);
        ensure!(expected.contains(&found), "find {expected:?} by {query}: {found}");
    }
    println!("  no duplicate came through, and nothing was pruned that protects or failed");
    Ok(())
}

type Claimers = JoinSet<Result<(Times, Times)>>;

/// Claims until told to stop: the times of the claims, and of their transactions.
fn claim(place: &Place, name: &'static str, stop: &Arc<AtomicBool>) -> Claimers {
    let mut claimers = JoinSet::new();
    for claimer in 0..CLAIMERS {
        let (url, stop) = (place.postgres.admin_url(crate::DATABASE), Arc::clone(stop));
        claimers.spawn(async move {
            let mut sql = testenv::Sql::connect(&url).await?;
            // Whoever waits longer for a lock of the prune fails.
            sql.batch_execute("set lock_timeout = '100ms'").await?;
            let (inbox, mut rng) = (Inbox::new("worker"), fastrand::Rng::with_seed(claimer as u64));
            let (mut claims, mut transactions) = (Times::default(), Times::default());
            for number in 0_u64.. {
                if stop.load(Relaxed) {
                    break;
                }
                // Two of three are new; the third comes again after up to three weeks.
                let (id, expected) = if number % 3 == 2 {
                    let young = rng.i64(YOUNG_ROWS * 3 / 24 + 1..=YOUNG_ROWS);
                    (format!("young-{young}"), Verdict::Duplicate)
                } else {
                    (format!("{name}-{claimer}-{number}"), Verdict::Process)
                };
                let begun = Instant::now();
                let transaction = sql.transaction().await?;
                let sent = Instant::now();
                let verdict = inbox.claim(&transaction, Message::new(&id)).await?;
                claims.push(sent.elapsed());
                transaction.commit().await?;
                transactions.push(begun.elapsed());
                ensure!(verdict == expected, "claim {id}: {verdict:?}");
                sleep(PAUSE).await;
            }
            Ok((claims, transactions))
        });
    }
    claimers
}

async fn end(claimers: &mut Claimers, stop: &AtomicBool) -> Result<(Times, Times)> {
    stop.store(true, Relaxed);
    let (mut claims, mut transactions) = (Times::default(), Times::default());
    while let Some(ended) = claimers.join_next().await {
        let (more_claims, more_transactions) = ended??;
        claims.extend(more_claims);
        transactions.extend(more_transactions);
    }
    Ok((claims, transactions))
}
