//! Many consumers at once, with duplicates, rollbacks and crashes: the ledger adds up.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use postrider_inbox::{Error, Inbox, Message, Verdict};
use testenv::Sql;
use tokio::task::{JoinSet, LocalSet};
use tokio_postgres::error::SqlState;

use crate::place::{Place, pid};

const CONSUMERS: usize = 16;
const MESSAGES: usize = 2000;
const LEDGER: &str = "create table ledger (id text not null, amount bigint not null);
    create table account (id int primary key, balance bigint not null);
    insert into account select id, 0 from generate_series(0, 9) id";

/// A number of a message is also its amount, so that the sum tells which are missing or double.
#[tokio::test]
async fn a_ledger_adds_up_under_duplicates_rollbacks_and_crashes() -> Result<()> {
    let place = Rc::new(Place::new("crowd", LEDGER).await?);
    let mut rng = Rng::with_seed(4);
    let mut deliveries: Vec<usize> = (1..=MESSAGES).collect();
    deliveries.extend((0..MESSAGES * 3 / 10).map(|_| rng.usize(1..=MESSAGES)));
    rng.shuffle(&mut deliveries);
    let queue = Rc::new(RefCell::new(deliveries));

    let (mut crowd, local) = (JoinSet::new(), LocalSet::new());
    for seed in 0..CONSUMERS {
        crowd.spawn_local_on(consume(Rc::clone(&place), Rc::clone(&queue), seed as u64), &local);
    }
    let (mut processed, mut duplicates, mut crashes) = (0, 0, 0);
    for counts in local.run_until(crowd.join_all()).await {
        let counts = counts?;
        processed += counts.0;
        duplicates += counts.1;
        crashes += counts.2;
    }

    assert_eq!(place.number("select count(*) from ledger").await?, i64::try_from(MESSAGES)?);
    let expected = i64::try_from(MESSAGES * (MESSAGES + 1) / 2)?;
    assert_eq!(place.number("select sum(amount)::bigint from ledger").await?, expected);
    assert_eq!(place.number("select sum(balance)::bigint from account").await?, expected);
    let completed = "select count(*) from postrider.inbox where status = 'completed'";
    assert_eq!(place.number(completed).await?, i64::try_from(MESSAGES)?);
    // A commit whose answer was lost is found as a duplicate.
    assert!(processed <= MESSAGES && processed + duplicates == MESSAGES + MESSAGES * 3 / 10);
    assert!(crashes > CONSUMERS, "{crashes} crashes are too few to show anything");
    Ok(())
}

/// Delivers until nothing is left; how many were processed, duplicates, and crashes on the way.
async fn consume(
    place: Rc<Place>,
    queue: Rc<RefCell<Vec<usize>>>,
    seed: u64,
) -> Result<(usize, usize, usize)> {
    let mut rng = Rng::with_seed(seed);
    let mut sql = place.connect().await?;
    let (mut processed, mut duplicates, mut crashes) = (0, 0, 0);
    while let Some(number) = next(&queue) {
        // As a broker would: again until it is acknowledged.
        loop {
            match handle(&place, &mut sql, &mut rng, number)
                .await
                .with_context(|| format!("handle {number}"))?
            {
                Some(Verdict::Process) => processed += 1,
                Some(Verdict::Duplicate) => duplicates += 1,
                Some(other) => anyhow::bail!("message {number} is {other:?}"),
                None => {
                    if sql.is_closed() {
                        crashes += 1;
                        sql = place.connect().await?;
                    }
                    continue;
                }
            }
            break;
        }
    }
    Ok((processed, duplicates, crashes))
}

fn next(queue: &RefCell<Vec<usize>>) -> Option<usize> {
    queue.borrow_mut().pop()
}

/// One delivery; none if it came to nothing.
async fn handle(place: &Place, sql: &mut Sql, rng: &mut Rng, number: usize) -> Result<Option<Verdict>> {
    let victim = (rng.u32(..40) == 0).then_some(pid(sql).await?);
    let id = format!("E-{number}");
    let transaction = sql.transaction().await?;
    let verdict = match Inbox::new("ledger").claim(&transaction, Message::new(&id)).await {
        Ok(verdict) => verdict,
        Err(Error::Postgres(error)) => return crashed(&error).map(|()| None),
        Err(error) => return Err(error.into()),
    };
    if verdict == Verdict::Process {
        let amount = i64::try_from(number)?;
        transaction.execute("insert into ledger values ($1, $2)", &[&id, &amount]).await?;
        let account = i32::try_from(number % 10)?;
        let add = "update account set balance = balance + $1 where id = $2";
        transaction.execute(add, &[&amount, &account]).await?;
    }
    if let Some(victim) = victim {
        place.kill(victim).await?;
        return Ok(None);
    }
    if rng.u32(..20) == 0 {
        transaction.rollback().await?;
        return Ok(None);
    }
    transaction.commit().await?;
    Ok(Some(verdict))
}

/// Only a killed session is expected: no deadlock, no serialization failure, nothing else.
fn crashed(error: &tokio_postgres::Error) -> Result<()> {
    let killed = error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN);
    ensure!(killed, "claim: {error:?}");
    Ok(())
}
