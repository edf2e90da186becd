//! Who may do what, and in which transactions; what is wrong is told by name.

use anyhow::Result;
use postrider_inbox::{Error, INBOX_SQL, Inbox, Message, Verdict};
use testenv::Sql;
use tokio_postgres::IsolationLevel;
use tokio_postgres::error::SqlState;

use crate::place::{Place, deliver};

#[tokio::test]
async fn it_can_be_installed_again_and_again() -> Result<()> {
    let place = Place::new("twice", "create table t ()").await?;
    let mut sql = place.connect().await?;
    assert_eq!(deliver(&mut sql, &Inbox::new("w"), Message::new("E-42"), "").await?, Verdict::Process);
    sql.batch_execute(INBOX_SQL).await?;
    assert_eq!(deliver(&mut sql, &Inbox::new("w"), Message::new("E-42"), "").await?, Verdict::Duplicate);
    Ok(())
}

#[tokio::test]
async fn a_consumer_can_call_the_functions_and_do_nothing_else() -> Result<()> {
    let place = Place::new("consumer rights", "").await?;
    let (consumer, stranger) = (place.scope.named("c"), place.scope.named("s"));
    let admin = place.connect().await?;
    for role in [&consumer, &stranger] {
        admin.batch_execute(&format!("create role \"{role}\" login password 'secret'")).await?;
    }
    admin.batch_execute(&format!("grant postrider_consumer to \"{consumer}\"")).await?;

    let mut sql = Sql::connect(&place.scope.postgres_url(&consumer, "secret")).await?;
    let message = Message::new("E-42").sequence("order 1", 1);
    assert_eq!(deliver(&mut sql, &Inbox::new("w"), message, "").await?, Verdict::Process);
    sql.batch_execute(
        "select postrider.inbox_record_failure('w', 'E-43', 'no paper');
         select postrider.inbox_resynchronise('w', 'order 1', 9);
         select postrider.inbox_begin('two', 'E-42');
         select postrider.inbox_extend('two', 'E-42', 1, '1 hour');
         select postrider.inbox_complete('two', 'E-42', 1);
         select postrider.inbox_begin('two', 'E-43');
         select postrider.inbox_fail('two', 'E-43', 1, 'no paper');
         select postrider.inbox_prune(postrider.inbox_duplicate_window('w'))",
    )
    .await?;
    for statement in [
        "select from postrider.inbox",
        "delete from postrider.inbox",
        "update postrider.inbox_sequence set last_seq = 0",
        "insert into postrider.inbox_window (consumer, replay) values ('w', '0')",
        "select postrider.inbox_check('w', 'E-42', '')",
        "select postrider.inbox_horizon('w', '1 day')",
        "create table postrider.mine ()",
    ] {
        check_refused(&sql, statement).await;
    }

    let sql = Sql::connect(&place.scope.postgres_url(&stranger, "secret")).await?;
    admin.batch_execute(&format!("grant usage on schema postrider to \"{stranger}\"")).await?;
    let functions = admin
        .query(
            "select p.oid::regprocedure::text, has_function_privilege($1, p.oid, 'execute'),
                 prosecdef and proconfig = array['search_path=pg_catalog, pg_temp']
             from pg_proc p where pronamespace = 'postrider'::regnamespace",
            &[&stranger],
        )
        .await?;
    assert!(functions.len() >= 9, "{}", functions.len());
    for function in functions {
        let (name, public, guarded): (&str, bool, bool) = (function.get(0), function.get(1), function.get(2));
        assert!(!public && guarded, "{name}");
    }
    check_refused(&sql, "select postrider.inbox_claim('w', 'E-44')").await;
    Ok(())
}

async fn check_refused(sql: &Sql, statement: &str) {
    let error = sql.batch_execute(statement).await.expect_err(statement);
    assert_eq!(error.code().map(SqlState::code), Some("42501"), "{statement}: {error}");
}

#[tokio::test]
async fn a_stranger_and_a_database_without_inbox_are_told_so() -> Result<()> {
    let place = Place::new("not installed", "").await?;
    let mut sql = place.connect().await?;
    sql.batch_execute("drop schema postrider cascade").await?;
    let transaction = sql.transaction().await?;
    let error = Inbox::new("w").claim(&transaction, Message::new("E-42")).await.expect_err("no inbox");
    assert!(matches!(error, Error::NotInstalled(_)), "{error}");
    Ok(())
}

#[tokio::test]
async fn only_read_committed_will_do() -> Result<()> {
    let place = Place::new("isolation", "").await?;
    let mut sql = place.connect().await?;
    for (level, works) in [
        (IsolationLevel::ReadCommitted, true),
        (IsolationLevel::RepeatableRead, false),
        (IsolationLevel::Serializable, false),
    ] {
        let transaction = sql.build_transaction().isolation_level(level).start().await?;
        let claimed = Inbox::new("w").claim(&transaction, Message::new("E-42")).await;
        match claimed {
            Ok(verdict) => assert!(works && verdict == Verdict::Process, "{level:?}"),
            Err(error) => {
                assert!(!works && matches!(error, Error::NotReadCommitted(_)), "{level:?}: {error}");
                assert!(error.to_string().contains("isolation level read committed"), "{error}");
            }
        }
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_a_message_is_refused_by_name() -> Result<()> {
    let place = Place::new("arguments", "").await?;
    let sql = place.connect().await?;
    let long = "x".repeat(256);
    let refused = async |call: String| {
        let error = sql.batch_execute(&format!("select postrider.{call}")).await.expect_err(&call);
        assert_eq!(error.code().map(SqlState::code), Some("PR004"), "{call}: {error}");
    };
    for call in [
        "inbox_claim(null, 'E')",
        "inbox_claim('', 'E')",
        "inbox_claim('w', null)",
        "inbox_claim('w', '')",
        "inbox_claim('w', 'E', source => null)",
        "inbox_claim('w', 'E', aggregate => 'a')",
        "inbox_claim('w', 'E', seq => 1)",
        "inbox_claim('w', 'E', aggregate => 'a', seq => 0)",
        "inbox_claim('w', 'E', aggregate => '', seq => 1)",
        "inbox_claim('w', 'E', content => 'a', content_sha256 => sha256('a'))",
        "inbox_claim('w', 'E', content_sha256 => 'a')",
        "inbox_begin('w', 'E', lease => '0')",
        "inbox_begin('w', 'E', lease => null)",
        "inbox_extend('w', 'E', 1, '0')",
        "inbox_extend('w', 'E', 1, null)",
        "inbox_resynchronise('w', 'a', 0)",
        "inbox_prune(null)",
        "inbox_prune('30 days', 0)",
    ] {
        refused(call.to_owned()).await;
    }
    refused(format!("inbox_claim('w', '{long}')")).await;
    refused(format!("inbox_claim('{long}', 'E')")).await;
    Ok(())
}
