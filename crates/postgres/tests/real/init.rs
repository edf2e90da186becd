//! `init` on real servers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_postgres::{Init, Progress, Reason, Subject, TableName};
use testenv::Sql;

use crate::rig::{INIT, LIMIT, Rig, shared, socket_url, stopped};

async fn made(rig: &Rig) -> Result<Vec<(String, bool)>> {
    let mut made = Vec::new();
    rig.owner
        .init(&rig.subject, INIT, &mut |progress| {
            if let Progress::Object { object, created } = progress {
                made.push((object, created));
            }
        })
        .await?;
    Ok(made)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_made_in_order_and_what_is_there_stays() -> Result<()> {
    let rig = Rig::empty("made").await?;
    let objects = [
        "schema postrider",
        "table postrider.outbox",
        "table postrider.command",
        "table postrider.relay",
        "table postrider.quarantine",
        "index postrider.quarantine_undelivered",
        "index postrider.quarantine_released",
        "index postrider.quarantine_message_id",
        "publication postrider",
        "slot made",
        "record of the slot made in postrider.relay",
    ];
    let plan = rig.owner.init_plan(&rig.subject, INIT).await?;
    assert_eq!(plan.iter().map(|p| p.object.as_str()).collect::<Vec<_>>(), objects);
    assert!(plan.iter().all(|p| !p.present), "{plan:?}");

    let first = made(&rig).await?;
    assert_eq!(first, objects.map(|o| (o.to_owned(), true)));
    rig.execute("alter table postrider.outbox add column more text; alter publication postrider set (publish = 'insert, update')").await?;
    let before = rig.inspect().await?.record;
    let second = made(&rig).await?;
    assert_eq!(second, objects.map(|o| (o.to_owned(), false)));
    assert_eq!(rig.inspect().await?.record, before);
    let plan = rig.owner.init_plan(&rig.subject, INIT).await?;
    assert!(plan.iter().all(|p| p.present), "{plan:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_is_made_without_publication_or_slot_and_stays() -> Result<()> {
    let rig = Rig::empty("inbox").await?;
    let inbox = async || -> Result<Vec<(String, bool)>> {
        let mut made = Vec::new();
        let tell = &mut |progress| {
            if let Progress::Object { object, created } = progress {
                made.push((object, created));
            }
        };
        rig.owner.init_inbox(tell).await?;
        Ok(made)
    };
    let plan = rig.owner.inbox_plan().await?;
    // The role is the whole server's, and may be another test's.
    assert!(plan.iter().all(|p| !p.present || p.object == "role postrider_consumer"), "{plan:?}");
    let first = inbox().await?;
    assert_eq!(first[0], ("schema postrider".to_owned(), true));
    assert_eq!(first.len(), plan.len());
    let left = "select (select count(*) from pg_publication) + (select count(*) from pg_replication_slots
        where database = current_database())";
    assert_eq!(rig.sql.query_one(left, &[]).await?.get::<_, i64>(0), 0);
    let executable = "select has_function_privilege('postrider_consumer', oid, 'execute')
        and not exists (select from aclexplode(proacl) where grantee = 0)
        from pg_proc where oid = to_regproc('postrider.inbox_claim')";
    assert!(rig.sql.query_one(executable, &[]).await?.get::<_, bool>(0));
    let claim = "select postrider.inbox_claim('worker', 'E-42')";
    assert_eq!(rig.sql.query_one(claim, &[]).await?.get::<_, &str>(0), "process");

    rig.execute("drop function postrider.inbox_prune").await?;
    for (object, created) in inbox().await? {
        assert_eq!(created, object == "function postrider.inbox_prune", "{object}");
    }
    assert!(inbox().await?.iter().all(|(_, created)| !created));
    assert_eq!(rig.sql.query_one(claim, &[]).await?.get::<_, &str>(0), "duplicate");
    // A relay's database can have an inbox as well.
    made(&rig).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_without_quarantine_gets_it() -> Result<()> {
    let rig = Rig::empty("older").await?;
    made(&rig).await?;
    rig.execute("drop table postrider.quarantine").await?;
    let again = made(&rig).await?;
    let created: Vec<&str> = again.iter().filter(|(_, created)| *created).map(|(what, _)| &**what).collect();
    assert_eq!(created.len(), 4, "{created:?}");
    assert!(created.iter().all(|what| what.contains("postrider.quarantine")), "{created:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_plan_does_the_same() -> Result<()> {
    let rig = Rig::empty("planned").await?;
    for planned in rig.owner.init_plan(&rig.subject, INIT).await? {
        rig.execute(&planned.sql.replace("pg_create", "pg_catalog.pg_create")).await?;
    }
    rig.grant().await?;
    rig.admin().await?.check(&rig.subject, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_the_users_own_is_the_users_to_make() -> Result<()> {
    let mut rig = Rig::empty("own_table").await?;
    let table: TableName = "\"Shop\".events".parse()?;
    rig.subject = Subject::new("own_table", "My Events", vec![table])?;
    let stop = stopped(rig.init().await)?;
    assert_eq!(stop.reason, Reason::NoTable, "{stop}");
    rig.execute("create schema \"Shop\"").await?;
    rig.apply(&stop).await?;
    rig.init().await?;
    let (_admin, mut stream) = rig.run().await?;
    rig.execute(
        "insert into \"Shop\".events (aggregate_type, aggregate_id, event_type) values ('t', 'own', 'e')",
    )
    .await?;
    crate::rig::receives(&mut stream, "own").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_is_named_and_nothing_is_left_behind() -> Result<()> {
    let rig = Rig::empty("blocked").await?;
    let other = Sql::connect(&socket_url(shared().await?, "postgres", "blocked")).await?;
    let pid: i32 = other.query_one("select pg_backend_pid()", &[]).await?.get(0);
    other.batch_execute("set application_name = 'the blocker'; begin; create table t (id int)").await?;
    // Longer than any limit for a statement that only looks.
    let hasty = Init { wait: Duration::from_secs(6), failover: true };
    let stop = stopped(rig.owner.init(&rig.subject, hasty, &mut |_| {}).await)?;
    assert_eq!(stop.reason, Reason::OpenTransactions, "{stop}");
    assert!(stop.why.contains(&format!("pid {pid} (role postgres, the blocker")), "{stop}");
    assert_eq!(stop.cure[0], format!("select pg_terminate_backend({pid})"));
    let seen = rig.inspect().await?;
    assert!(seen.slot.is_none() && seen.record.is_none());
    rig.grant().await?;
    rig.apply(&stop).await?;
    rig.admin().await?.check(&rig.subject, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_ends_in_time_is_waited_for() -> Result<()> {
    let rig = Rig::empty("waited").await?;
    let other = Sql::connect(&socket_url(shared().await?, "postgres", "waited")).await?;
    let pid: i32 = other.query_one("select pg_backend_pid()", &[]).await?.get(0);
    other.batch_execute("begin; create table t (id int)").await?;
    let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let mut tell = |progress| {
        if let Progress::Waiting { blockers, .. } = progress {
            // Nobody listens any more once the transaction has ended.
            let _ = told.send(blockers);
        }
    };
    let ending = async {
        let blockers = tokio::time::timeout(LIMIT, hear.recv()).await?.context("be told of a blocker")?;
        assert_eq!(blockers.iter().map(|b| b.pid).collect::<Vec<_>>(), [pid]);
        other.batch_execute("commit").await.context("end the transaction")
    };
    let (made, ended) = tokio::join!(rig.owner.init(&rig.subject, INIT, &mut tell), ending);
    ended?;
    made?;
    Ok(())
}
