//! Two copies at once: the second waits for the first, and holds nothing that a third could wait for.

use anyhow::{Result, bail};
use postrider_inbox::{Inbox, Message, Verdict};
use testenv::Sql;
use tokio::time::timeout;

use crate::place::{LIMIT, Place, deliver, pid};

const LEDGER: &str = "create table ledger (entry text)";
const WORK: &str = "insert into ledger values ('E-42')";
const ENTRIES: &str = "select count(*) from ledger";

#[derive(Clone, Copy, Debug)]
enum First {
    Commits,
    RollsBack,
    Dies,
}

#[tokio::test]
async fn the_second_copy_waits_for_the_first_and_is_a_duplicate() -> Result<()> {
    for message in [Message::new("E-42"), Message::new("E-42").sequence("order 1", 1)] {
        check(message, First::Commits, Verdict::Duplicate).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_second_copy_processes_when_the_first_rolls_back_or_dies() -> Result<()> {
    for message in [Message::new("E-42"), Message::new("E-42").sequence("order 1", 1)] {
        check(message, First::RollsBack, Verdict::Process).await?;
        check(message, First::Dies, Verdict::Process).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_copy_of_a_failed_message_waits_as_well() -> Result<()> {
    let place = Place::new("failed copies", LEDGER).await?;
    let inbox = Inbox::new("worker");
    inbox.record_failure(&*place.connect().await?, Message::new("E-42"), "no paper").await?;
    // An update takes its transaction's number before it waits; no row bears it yet.
    let number = ["transactionid ExclusiveLock"];
    race(&place, &inbox, Message::new("E-42"), First::Commits, Verdict::Duplicate, &number).await
}

#[tokio::test]
async fn a_copy_that_was_claimed_without_its_number_leaves_no_baseline() -> Result<()> {
    let place = Place::new("no baseline", LEDGER).await?;
    let inbox = Inbox::new("worker");
    let (mut first, mut second) = (place.connect().await?, place.connect().await?);
    let second_pid = pid(&second).await?;
    let transaction = first.transaction().await?;
    assert_eq!(inbox.claim(&transaction, Message::new("E-42")).await?, Verdict::Process);
    let meanwhile = async {
        place.blocked(second_pid).await?;
        transaction.commit().await?;
        Ok::<_, anyhow::Error>(())
    };
    let numbered = Message::new("E-42").sequence("order 1", 7);
    let (verdict, ended) = tokio::join!(deliver(&mut second, &inbox, numbered, WORK), meanwhile);
    ended?;
    assert_eq!(verdict?, Verdict::Duplicate);
    assert_eq!(place.number("select count(*) from postrider.inbox_sequence").await?, 0);
    Ok(())
}

async fn check(message: Message<'_>, first: First, expected: Verdict) -> Result<()> {
    let place = Place::new("two copies", LEDGER).await?;
    race(&place, &Inbox::new("worker"), message, first, expected, &[]).await
}

async fn race(
    place: &Place,
    inbox: &Inbox,
    message: Message<'_>,
    end: First,
    expected: Verdict,
    locks: &[&str],
) -> Result<()> {
    let (mut first, mut second) = (place.connect().await?, place.connect().await?);
    let (first_pid, second_pid) = (pid(&first).await?, pid(&second).await?);
    let transaction = first.transaction().await?;
    assert_eq!(inbox.claim(&transaction, message).await?, Verdict::Process);
    transaction.batch_execute(WORK).await?;

    let meanwhile = async {
        place.blocked(second_pid).await?;
        assert_eq!(held(&place.connect().await?, second_pid).await?, locks);
        match end {
            First::Commits => transaction.commit().await?,
            First::RollsBack => transaction.rollback().await?,
            First::Dies => place.kill(first_pid).await?,
        }
        Ok(())
    };
    let Ok((verdict, ended)) =
        timeout(LIMIT, async { tokio::join!(deliver(&mut second, inbox, message, WORK), meanwhile) }).await
    else {
        bail!("{message:?}, {end:?}: the second copy waits for ever")
    };
    ended.and_then(|()| verdict.map(|verdict| assert_eq!(verdict, expected, "{message:?}, {end:?}")))?;
    assert_eq!(place.number(ENTRIES).await?, 1, "{message:?}, {end:?}");
    Ok(())
}

/// The locks of a session that another consumer could have to wait for: of rows, of transactions that wrote,
/// and any on a whole table but the two weak ones that reading and writing take.
async fn held(sql: &Sql, pid: i32) -> Result<Vec<String>> {
    let query = "select locktype || ' ' || mode from pg_locks where pid = $1 and granted
        and locktype <> 'virtualxid'
        and not (locktype = 'relation' and mode in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock'))
        -- The place in the queue for the very row that it waits for.
        and not (locktype = 'tuple' and relation in
            ('postrider.inbox'::regclass, 'postrider.inbox_sequence'::regclass))";
    Ok(sql.query(query, &[&pid]).await?.iter().map(|row| row.get(0)).collect())
}
