//! Effects outside the database: the outbox of mails here is a table only because a test has to look at it.

use std::time::Duration;

use anyhow::{Result, bail};
use postrider_inbox::{Begun, Error, Fence, Inbox, Message, TwoPhase, Verdict};
use testenv::{Sql, eventually};

use crate::place::{LIMIT, Place, deliver};

/// Never runs out during a test.
const LONG: Duration = Duration::from_secs(3600);
/// Has run out when it is looked at again.
const SHORT: Duration = Duration::from_millis(1);

fn mailer(lease: Duration) -> TwoPhase {
    TwoPhase::new(Inbox::new("mailer"), lease).owner("a test")
}

const MAIL: Message<'static> = Message::new("E-42");

async fn started(sql: &Sql, inbox: &TwoPhase) -> Result<Fence> {
    match inbox.begin(sql, MAIL).await? {
        Begun::Process(fence) => Ok(fence),
        other => bail!("expected to process, got {other:?}"),
    }
}

async fn reconciled(sql: &Sql, inbox: &TwoPhase) -> Result<Fence> {
    eventually("the lease to run out", LIMIT, async || match inbox.begin(sql, MAIL).await? {
        Begun::Reconcile(fence) => Ok(Some(fence)),
        Begun::InProgress => Ok(None),
        other => bail!("expected to reconcile, got {other:?}"),
    })
    .await
}

#[tokio::test]
async fn a_mail_sent_before_a_crash_is_reconciled_and_not_sent_again() -> Result<()> {
    let place = Place::new("mail", "create table mail (id text)").await?;
    let sql = place.connect().await?;
    let mail = "insert into mail values ('E-42')";
    {
        started(&sql, &mailer(SHORT)).await?;
        sql.batch_execute(mail).await?;
        // The crash: nobody completes it.
    }
    let fence = reconciled(&sql, &mailer(LONG)).await?;
    let sent = place.number("select count(*) from mail where id = 'E-42'").await?;
    assert_eq!(sent, 1, "the other system knows its id");
    mailer(LONG).complete(&sql, &fence, Some("sent by a worker that was lost")).await?;
    assert_eq!(mailer(LONG).begin(&sql, MAIL).await?, Begun::Duplicate);
    assert_eq!(place.number("select count(*) from mail").await?, 1);
    let row =
        sql.query_one("select status, attempts, outcome, lease_until from postrider.inbox", &[]).await?;
    let seen: (&str, i32, &str) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(seen, ("completed", 2, "sent by a worker that was lost"));
    assert!(row.get::<_, Option<std::time::SystemTime>>(3).is_none());
    Ok(())
}

#[tokio::test]
async fn one_worker_has_it_at_a_time() -> Result<()> {
    let place = Place::new("in progress", "").await?;
    let sql = place.connect().await?;
    let inbox = mailer(LONG);
    let fence = started(&sql, &inbox).await?;
    assert_eq!(inbox.begin(&sql, MAIL).await?, Begun::InProgress);
    assert_eq!(inbox.begin(&sql, MAIL.content(b"one")).await?, Begun::InProgress);
    inbox.complete(&sql, &fence, None).await?;
    // The answer was lost: the same again is no harm.
    inbox.complete(&sql, &fence, None).await?;
    assert_eq!(inbox.begin(&sql, MAIL).await?, Begun::Duplicate);
    Ok(())
}

#[tokio::test]
async fn a_stale_fence_is_refused() -> Result<()> {
    let place = Place::new("fence", "").await?;
    let sql = place.connect().await?;
    let (old, inbox) = (mailer(SHORT), mailer(LONG));
    let stale = started(&sql, &old).await?;
    let fence = reconciled(&sql, &inbox).await?;
    assert!(fence.number() > stale.number());
    // Two who reconcile do not meet.
    assert_eq!(inbox.begin(&sql, MAIL).await?, Begun::InProgress);
    for refused in [
        old.complete(&sql, &stale, None).await,
        old.fail(&sql, &stale, "no paper").await.map(drop),
        old.extend(&sql, &stale).await,
    ] {
        let error = refused.expect_err("the message is another worker's");
        assert!(matches!(error, Error::StaleFence(_)), "{error}");
        assert!(error.to_string().contains("its last worker a test"), "{error}");
    }
    inbox.extend(&sql, &fence).await?;
    inbox.complete(&sql, &fence, None).await?;
    let refused = old.complete(&sql, &stale, None).await.expect_err("it is done by another worker");
    assert!(matches!(refused, Error::StaleFence(_)), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_lease_that_ran_out_does_not_stop_its_worker_while_nobody_else_came() -> Result<()> {
    let place = Place::new("slow worker", "").await?;
    let sql = place.connect().await?;
    let inbox = mailer(SHORT);
    let fence = started(&sql, &inbox).await?;
    sql.batch_execute("select pg_sleep(0.01)").await?;
    inbox.complete(&sql, &fence, None).await?;
    assert_eq!(inbox.begin(&sql, MAIL).await?, Begun::Duplicate);
    Ok(())
}

#[tokio::test]
async fn a_failure_hands_it_out_again_and_an_extension_keeps_it() -> Result<()> {
    let place = Place::new("two-phase failure", "").await?;
    let sql = place.connect().await?;
    let inbox = mailer(LONG);
    for attempt in 1..=3 {
        let fence = started(&sql, &inbox).await?;
        assert_eq!(fence.number(), i64::from(attempt));
        assert_eq!(inbox.fail(&sql, &fence, "no paper").await?, attempt);
        assert_eq!(inbox.fail(&sql, &fence, "no paper").await?, attempt);
    }
    let short = mailer(SHORT);
    let fence = started(&sql, &short).await?;
    inbox.extend(&sql, &fence).await?;
    sql.batch_execute("select pg_sleep(0.01)").await?;
    assert_eq!(short.begin(&sql, MAIL).await?, Begun::InProgress);
    Ok(())
}

#[tokio::test]
async fn other_content_is_a_mismatch_also_while_it_is_handled() -> Result<()> {
    let place = Place::new("two-phase mismatch", "").await?;
    let sql = place.connect().await?;
    let inbox = mailer(LONG);
    let Begun::Process(fence) = inbox.begin(&sql, MAIL.content(b"one")).await? else {
        bail!("a new message is to be processed");
    };
    assert_eq!(inbox.begin(&sql, MAIL.content(b"two")).await?, Begun::Mismatch);
    inbox.complete(&sql, &fence, None).await?;
    assert_eq!(inbox.begin(&sql, MAIL.content(b"two")).await?, Begun::Mismatch);
    assert_eq!(inbox.begin(&sql, MAIL.content(b"one")).await?, Begun::Duplicate);
    Ok(())
}

#[tokio::test]
async fn one_phase_and_two_do_not_mix_in_silence() -> Result<()> {
    let place = Place::new("mixed phases", "").await?;
    let mut sql = place.connect().await?;
    let (two, one) = (mailer(LONG), Inbox::new("mailer"));
    let fence = started(&sql, &two).await?;
    let transaction = sql.transaction().await?;
    let error = one.claim(&transaction, MAIL).await.expect_err("it is handled in two phases");
    assert!(matches!(error, Error::TwoPhase(_)), "{error}");
    transaction.rollback().await?;
    let error = one.record_failure(&sql, MAIL, "no paper").await.expect_err("it is handled in two phases");
    assert!(matches!(error, Error::TwoPhase(_)), "{error}");
    two.complete(&sql, &fence, None).await?;
    assert_eq!(deliver(&mut sql, &one, MAIL, "").await?, Verdict::Duplicate);
    Ok(())
}
