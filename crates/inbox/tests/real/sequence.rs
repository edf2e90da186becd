//! Numbers in an aggregate: nothing is handled before what comes before it.

use std::collections::VecDeque;

use anyhow::Result;
use postrider_inbox::{Inbox, Message, Verdict};
use testenv::Sql;

use crate::place::{Place, deliver};

const HANDLED: &str = "create table handled (place bigint generated always as identity, seq bigint)";

#[tokio::test]
async fn early_ones_that_are_held_are_handled_in_order() -> Result<()> {
    let place = Place::new("sequence", HANDLED).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("worker").start_at_one();
    let mut queue = VecDeque::from([1, 2, 4, 3, 5]);
    let mut early = Vec::new();
    while let Some(seq) = queue.pop_front() {
        match number(&mut sql, &inbox, seq).await? {
            Verdict::Early => {
                early.push(seq);
                // Held: it is tried again behind the next one.
                queue.insert(1, seq);
            }
            verdict => assert_eq!(verdict, Verdict::Process, "{seq}"),
        }
    }
    assert_eq!(early, [4]);
    assert_eq!(handled(&sql).await?, [1, 2, 3, 4, 5]);
    Ok(())
}

#[tokio::test]
async fn a_gap_is_closed_by_resynchronising_and_what_comes_too_late_is_stale() -> Result<()> {
    let place = Place::new("gap", HANDLED).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("worker").start_at_one();
    for (seq, verdict) in
        [(1, Verdict::Process), (2, Verdict::Process), (4, Verdict::Early), (5, Verdict::Early)]
    {
        assert_eq!(number(&mut sql, &inbox, seq).await?, verdict, "{seq}");
    }
    inbox.resynchronise(&sql, "", "order 1", 4).await?;
    for (seq, verdict) in [
        (5, Verdict::Early),
        (4, Verdict::Process),
        (5, Verdict::Process),
        (3, Verdict::Stale),
        (4, Verdict::Duplicate),
    ] {
        assert_eq!(number(&mut sql, &inbox, seq).await?, verdict, "{seq}");
    }
    // Never back.
    inbox.resynchronise(&sql, "", "order 1", 2).await?;
    assert_eq!(number(&mut sql, &inbox, 6).await?, Verdict::Process);
    assert_eq!(handled(&sql).await?, [1, 2, 4, 5, 6]);
    Ok(())
}

#[tokio::test]
async fn the_first_number_seen_is_the_baseline_unless_it_starts_at_one() -> Result<()> {
    let place = Place::new("baseline", HANDLED).await?;
    let mut sql = place.connect().await?;
    let late = Inbox::new("late");
    for (seq, verdict) in [
        (7, Verdict::Process),
        (6, Verdict::Stale),
        (8, Verdict::Process),
        (10, Verdict::Early),
        (9, Verdict::Process),
    ] {
        assert_eq!(number(&mut sql, &late, seq).await?, verdict, "{seq}");
    }
    let strict = Inbox::new("strict").start_at_one();
    assert_eq!(number(&mut sql, &strict, 7).await?, Verdict::Early);
    assert_eq!(number(&mut sql, &strict, 1).await?, Verdict::Process);
    Ok(())
}

#[tokio::test]
async fn early_and_mismatch_write_nothing_at_all() -> Result<()> {
    let place = Place::new("nothing written", HANDLED).await?;
    let mut sql = place.connect().await?;
    let strict = Inbox::new("strict").start_at_one();
    assert_eq!(number(&mut sql, &strict, 2).await?, Verdict::Early);
    assert_eq!(place.number("select count(*) from postrider.inbox_sequence").await?, 0);
    assert_eq!(number(&mut sql, &strict, 1).await?, Verdict::Process);
    let rows = "select (select md5(string_agg(i::text, '')) from postrider.inbox i)
        || (select md5(string_agg(s::text, '')) from postrider.inbox_sequence s)";
    let before: String = sql.query_one(rows, &[]).await?.get(0);
    assert_eq!(number(&mut sql, &strict, 3).await?, Verdict::Early);
    let other = Message::new("E-1").content(b"another").sequence("order 1", 1);
    assert_eq!(deliver(&mut sql, &strict, other, "").await?, Verdict::Mismatch);
    // Also where the aggregate is a new one.
    let elsewhere = Message::new("E-1").content(b"another").sequence("order 2", 1);
    assert_eq!(deliver(&mut sql, &strict, elsewhere, "").await?, Verdict::Mismatch);
    assert_eq!(sql.query_one(rows, &[]).await?.get::<_, String>(0), before);
    Ok(())
}

#[tokio::test]
async fn a_rolled_back_number_is_not_counted() -> Result<()> {
    let place = Place::new("rolled back number", HANDLED).await?;
    let mut sql = place.connect().await?;
    let inbox = Inbox::new("worker");
    for seq in [1, 2] {
        let transaction = sql.transaction().await?;
        let message = Message::new("E").sequence("order 1", seq);
        assert_eq!(inbox.claim(&transaction, message).await?, Verdict::Process, "{seq}");
        transaction.rollback().await?;
    }
    // Of the aggregate nothing was handled, so this one is the baseline.
    assert_eq!(number(&mut sql, &inbox, 1).await?, Verdict::Process);
    assert_eq!(number(&mut sql, &inbox, 3).await?, Verdict::Early);
    Ok(())
}

/// Delivers number `seq` of `order 1`.
async fn number(sql: &mut Sql, inbox: &Inbox, seq: i64) -> Result<Verdict> {
    let id = format!("E-{seq}");
    let message = Message::new(&id).content(id.as_bytes()).sequence("order 1", seq);
    deliver(sql, inbox, message, &format!("insert into handled (seq) values ({seq})")).await
}

async fn handled(sql: &Sql) -> Result<Vec<i64>> {
    let rows = sql.query("select seq from handled order by place", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
