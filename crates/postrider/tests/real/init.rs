//! `postrider init`: what is missing is created, what is there is left, and nothing is left half done.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testenv::{Addresses, Postgres, PostgresOptions, Scope, Sql, eventually};
use tokio::io::AsyncWriteExt as _;

use crate::run::{self, expect};
use crate::stage::{LIMIT, Stage};

const OBJECTS: [&str; 11] = [
    "schema postrider",
    "table postrider.outbox",
    "table postrider.command",
    "table postrider.relay",
    "table postrider.quarantine",
    "index postrider.quarantine_undelivered",
    "index postrider.quarantine_released",
    "index postrider.quarantine_message_id",
    "publication NAME",
    "slot NAME",
    "record of the slot NAME in postrider.relay",
];

/// The lines of `init`, each object with this word.
fn lines(stage: &Stage, word: impl Fn(&str) -> &'static str) -> String {
    let line = |object: &&str| format!("{}: {}\n", object.replace("NAME", stage.name()), word(object));
    OBJECTS.iter().map(line).collect::<String>() + "next: postrider run\n"
}

/// A server of the test's own: creating a slot waits for every open transaction of a server.
async fn own_server(test: &str) -> Result<(Postgres, Stage)> {
    let server = Postgres::start(PostgresOptions { fsync: false, ..PostgresOptions::default() }).await?;
    let shared = Scope::shared(test).await?;
    let addresses = Addresses { postgres_port: server.port(), ..shared.addresses().clone() };
    let stage = Stage::bare(Scope::create(addresses, test).await?).await?;
    Ok((server, stage))
}

#[tokio::test]
async fn init_creates_what_is_missing_and_changes_nothing() -> Result<()> {
    let stage = Stage::bare(Scope::shared("init twice").await?).await?;
    let (printed, _) = expect(&stage.rig.admin, "init", 0).await?;
    assert_eq!(printed, lines(&stage, |_| "created"));
    let identity = "select oid::text || (select created_at::text from postrider.relay) from pg_publication";
    let before = stage.text(identity).await?;
    let (printed, _) = expect(&stage.rig.admin, "init", 0).await?;
    assert_eq!(printed, lines(&stage, |_| "present"));
    assert_eq!(stage.text(identity).await?, before);

    stage.execute("drop table postrider.command cascade").await?;
    let (printed, _) = expect(&stage.rig.admin, "init", 0).await?;
    let word = |object: &str| if object.contains("command") { "created" } else { "present" };
    assert_eq!(printed, lines(&stage, word));
    stage.rig.grant().await?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn init_creates_an_inbox_where_a_consumer_works() -> Result<()> {
    let stage = Stage::bare(Scope::shared("init inbox").await?).await?;
    let (plan, _) = expect(&stage.rig.admin, "init --inbox --dry-run", 0).await?;
    ensure!(
        plan.contains("-- function postrider.inbox_claim: missing, would be created by\ncreate or"),
        "{plan}"
    );
    ensure!(stage.text("select count(*)::text from pg_namespace where nspname = 'postrider'").await? == "0");
    let (printed, _) = expect(&stage.rig.admin, "init --inbox", 0).await?;
    ensure!(printed.starts_with("schema postrider: created\ntable postrider.inbox: created\n"), "{printed}");
    ensure!(printed.ends_with("next: grant postrider_consumer to the role that your consumer logs in as\n"));
    ensure!(stage.text("select postrider.inbox_claim('worker', 'E-42')").await? == "process");
    let (printed, _) = expect(&stage.rig.admin, "init --inbox", 0).await?;
    ensure!(!printed.contains("created"), "{printed}");
    let (_, said) = expect(&stage.rig.admin, "init --inbox --wait 5", 2).await?;
    ensure!(said.contains("--inbox"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_prints_the_sql_that_does_the_same() -> Result<()> {
    let (server, stage) = own_server("init dry run").await?;
    let (printed, _) = expect(&stage.rig.admin, "init --dry-run", 0).await?;
    ensure!(stage.text("select count(*)::text from pg_namespace where nspname = 'postrider'").await? == "0");
    let mut psql = tokio::process::Command::new(server.bin().join("psql"))
        .args([
            "--no-psqlrc",
            "--set",
            "ON_ERROR_STOP=1",
            "--quiet",
            "--dbname",
            &stage.rig.scope.admin_url(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start psql")?;
    let mut input = psql.stdin.take().context("write to psql")?;
    input.write_all(printed.as_bytes()).await?;
    drop(input);
    let done = tokio::time::timeout(LIMIT, psql.wait_with_output()).await.context("wait for psql")??;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "psql: {said}; it was fed:\n{printed}");
    let (printed, _) = expect(&stage.rig.admin, "init", 0).await?;
    assert_eq!(printed, lines(&stage, |_| "present"));
    stage.rig.grant().await?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn init_names_who_holds_it_up_and_gives_up_cleanly() -> Result<()> {
    let (_server, stage) = own_server("init waits").await?;
    let writer = Sql::connect(&format!("{}?application_name=month_end", stage.rig.scope.admin_url())).await?;
    writer.batch_execute("create table mine (a integer); begin; insert into mine values (1)").await?;
    let pid: i32 = writer.query_one("select pg_backend_pid()", &[]).await?.get(0);

    let (printed, said) = expect(&stage.rig.admin, "init --wait 2", 1).await?;
    assert!(said.contains("waiting for 1 s until these end: pid "), "{said}");
    let named = format!("pid {pid} (role postgres, month_end, open for ");
    assert!(said.matches(&named).count() >= 2, "{said}");
    assert!(said.contains("was not created") && said.contains("nothing is left of the attempt"), "{said}");
    let cures: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  cure: ")).collect();
    assert_eq!(cures, [&format!("select pg_terminate_backend({pid})"), "postrider slot create"]);
    assert!(printed.ends_with(&format!("publication {}: created\n", stage.name())), "{printed}");
    let left = "select (select count(*) from pg_replication_slots) + (select count(*) from postrider.relay)
                + (select count(*) from pg_stat_activity where query like '%pg_create_logical%'
                     and pid <> pg_backend_pid() and state <> 'idle')";
    eventually("nothing to be left", LIMIT, async || {
        Ok((stage.text(&format!("select ({left})::text")).await? == "0").then_some(()))
    })
    .await?;

    // The same again, and this time the transaction ends.
    let program = stage.rig.admin.clone();
    let waiting = tokio::join!(expect(&program, "init", 0), async {
        eventually("init to wait", LIMIT, async || {
            let waits = "select count(*)::text from pg_stat_activity
                         where query like 'select pg_create_logical%' and wait_event_type = 'Lock'";
            Ok((stage.text(waits).await? == "1").then_some(()))
        })
        .await?;
        run::let_pass(Duration::from_millis(1100)).await;
        writer.batch_execute("commit").await.context("commit")
    });
    let ((printed, said), ()) = (waiting.0?, waiting.1?);
    assert!(said.contains(&named), "{said}");
    let late = |object: &str| if object.contains("slot") { "created" } else { "present" };
    assert_eq!(printed, lines(&stage, late));
    stage.rig.grant().await?;
    stage.expect_delivery().await
}
