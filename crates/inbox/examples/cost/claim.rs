//! A claim beside the insert that a consumer would write without an inbox.
//!
//! The kinds take turns within a round, so that whatever the machine does meets all of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postrider_inbox::{Inbox, Message, Verdict, content_sha256};
use testenv::Sql;
use tokio_postgres::types::Type;
use tokio_postgres::{Statement, Transaction};

use crate::Place;
use crate::times::Times;

const RUNS: usize = 5;
const ROUNDS: usize = 4000;
const BODY: &[u8] = &[b'x'; 300];
/// What the claim inserts, into a table of the same shape, indexes included.
const INSERT: &str = "insert into bare (consumer, source, message_id, content_sha256, status, completed_at)
    values ($1, '', $2, $3, 'completed', clock_timestamp()) on conflict do nothing";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The insert by a prepared statement: the least that it can be.
    Prepared,
    /// The insert as the claim is sent: parsed, bound and executed in one round trip.
    Insert,
    Claim,
    Numbered,
    Again,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Prepared, "insert, prepared"),
    (Kind::Insert, "insert, parsed each time"),
    (Kind::Claim, "claim: process"),
    (Kind::Numbered, "claim with a number: process"),
    (Kind::Again, "claim: duplicate"),
];

/// What each kind took in one run: the statement, and its transaction from BEGIN to COMMIT.
#[derive(Default)]
struct Run([(Times, Times); KINDS.len()]);

pub(crate) async fn run() -> Result<()> {
    let place = Place::start().await?;
    let mut sql = place.connect().await?;
    sql.batch_execute("create table bare (like postrider.inbox including all)").await?;
    let insert = sql.prepare_typed(INSERT, &[Type::TEXT, Type::TEXT, Type::BYTEA]).await?;
    println!("claim: {ROUNDS} rounds, a content of {} bytes; median of {RUNS} runs, in ms\n", BODY.len());
    let mut runs = Vec::new();
    for run in 0..=RUNS {
        let taken = measure(&mut sql, &insert, run).await?;
        // The first one warms up.
        if run > 0 {
            runs.push(taken);
        }
    }
    let median = |at: usize, share: f64, of: fn(&mut (Times, Times)) -> &mut Times, runs: &mut Vec<Run>| {
        let mut all: Vec<_> = runs.iter_mut().map(|run| of(&mut run.0[at]).quantile(share)).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    println!("{:<32}{:>10}{:>10}{:>12}{:>16}", "", "p50", "p99", "difference", "transaction p50");
    let bare = median(0, 0.5, |times| &mut times.0, &mut runs);
    for (at, (_, name)) in KINDS.iter().enumerate() {
        let p50 = median(at, 0.5, |times| &mut times.0, &mut runs);
        let p99 = median(at, 0.99, |times| &mut times.0, &mut runs);
        let whole = median(at, 0.5, |times| &mut times.1, &mut runs);
        let more = ms(p50) - ms(bare);
        println!("{name:<32}{:>10.3}{:>10.3}{more:>+12.3}{:>16.3}", ms(p50), ms(p99), ms(whole));
    }
    let [prepared, insert, claim] = [0, 1, 2].map(|at| ms(median(at, 0.5, |times| &mut times.0, &mut runs)));
    let whole = [0, 2].map(|at| ms(median(at, 0.5, |times| &mut times.1, &mut runs)));
    println!(
        "\nclaim / insert: {:.2} prepared, {:.2} parsed each time; of the transactions: {:.2}\n",
        claim / prepared,
        claim / insert,
        whole[1] / whole[0]
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn measure(sql: &mut Sql, insert: &Statement, run: usize) -> Result<Run> {
    let inbox = Inbox::new("worker");
    let mut taken = Run::default();
    for round in 0..ROUNDS {
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            let begun = Instant::now();
            let transaction = sql.transaction().await?;
            let sent = Instant::now();
            statement(&transaction, insert, &inbox, *kind, run * ROUNDS + round).await?;
            taken.0[at].0.push(sent.elapsed());
            transaction.commit().await?;
            taken.0[at].1.push(begun.elapsed());
        }
    }
    Ok(taken)
}

async fn statement(
    transaction: &Transaction<'_>,
    insert: &Statement,
    inbox: &Inbox,
    kind: Kind,
    number: usize,
) -> Result<()> {
    let id = match kind {
        Kind::Again => format!("{:?} {number}", Kind::Claim),
        _ => format!("{kind:?} {number}"),
    };
    let message = Message::new(&id).content(BODY);
    let (consumer, hash) = (inbox.consumer(), content_sha256(BODY));
    let (verdict, expected) = match kind {
        Kind::Prepared => {
            let inserted = transaction.execute(insert, &[&consumer, &id, &hash.as_slice()]).await?;
            ensure!(inserted == 1, "insert {id}");
            return Ok(());
        }
        Kind::Insert => {
            let inserted = transaction
                .execute_typed(
                    INSERT,
                    &[(&consumer, Type::TEXT), (&id, Type::TEXT), (&hash.as_slice(), Type::BYTEA)],
                )
                .await?;
            ensure!(inserted == 1, "insert {id}");
            return Ok(());
        }
        Kind::Claim => (inbox.claim(transaction, message).await?, Verdict::Process),
        Kind::Numbered => {
            let seq = i64::try_from(number)? + 1;
            (inbox.claim(transaction, message.sequence("order/1", seq)).await?, Verdict::Process)
        }
        Kind::Again => (inbox.claim(transaction, message).await?, Verdict::Duplicate),
    };
    ensure!(verdict == expected, "claim {id}: {verdict:?}");
    Ok(())
}
