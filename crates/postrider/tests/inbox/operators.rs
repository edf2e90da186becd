//! `postrider inbox`: what failed is seen, handled afresh, and what protects from nothing any more is deleted.

use anyhow::{Result, ensure};
use testenv::Scope;
use testenv::relay::{Output, Program};

use crate::BINARY;

async fn call(program: &Program, line: &str, code: i32) -> Result<Output> {
    let words: Vec<&str> = line.split(' ').collect();
    let output = program.output(&words).await?;
    ensure!(output.code == Some(code), "{line}: {output:?}");
    Ok(output)
}

#[tokio::test]
async fn operators_see_what_failed_and_let_it_be_handled_afresh() -> Result<()> {
    let scope = Scope::shared("inbox operators").await?;
    let program = Program::new(BINARY).set("postgres.url", scope.admin_url());
    let none = call(&program, "inbox list", 1).await?;
    ensure!(none.stderr.contains("`postrider init --inbox`"), "{none:?}");
    call(&program, "init --inbox", 0).await?;
    let sql = scope.connect().await?;
    sql.batch_execute(
        "select postrider.inbox_record_failure('worker', 'E-1', E'no\\tpaper');
         select postrider.inbox_record_failure('worker', 'E-1', E'no\\tpaper');
         select postrider.inbox_claim('worker', 'E-2');
         select postrider.inbox_begin('mailer', 'E-3', lease => '1 microsecond');
         select postrider.inbox_begin('mailer', 'E-4', lease => '1 hour')",
    )
    .await?;

    let listed = call(&program, "inbox list", 0).await?.stdout;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
    ensure!(rows[0] == ["consumer", "source", "id", "status", "attempts", "received", "error"], "{listed}");
    let short: Vec<_> = rows[1..].iter().map(|row| (row[2], row[3], row[4], row[6])).collect();
    let expected = [
        ("E-1", "failed", "2", "no\\tpaper"),
        ("E-3", "reconcile", "1", "-"),
        ("E-4", "processing", "1", "-"),
    ];
    ensure!(short == expected, "{listed}");
    let one = call(&program, "inbox list --consumer worker --id E-2 --all-states --json", 0).await?.stdout;
    for pair in ["\"status\": \"completed\"", "\"message_id\": \"E-2\"", "\"attempts\": 1"] {
        ensure!(one.contains(pair), "{one}");
    }

    let shown = call(&program, "inbox show --consumer mailer --id E-4 --json", 0).await?.stdout;
    for pair in
        ["\"fence\": 1", "\"status\": \"processing\"", "\"content_sha256\": null", "\"lease_until\": \"2"]
    {
        ensure!(shown.contains(pair), "{shown}");
    }
    sql.batch_execute(
        "select postrider.inbox_claim('worker', 'E-5', content => 'abc');
         select postrider.inbox_claim('worker', 'E-5', source => 'shop');
         select postrider.inbox_claim('archive', 'E-5')",
    )
    .await?;
    let listed = call(&program, "inbox list --id E-5 --all-states", 0).await?.stdout;
    let mut who: Vec<_> = listed.lines().skip(1).filter_map(|line| line.split_once("\tE-5\t")).collect();
    who.sort_unstable();
    ensure!(who.iter().map(|(who, _)| *who).eq(["archive\t", "worker\t", "worker\tshop"]), "{listed}");
    let several = call(&program, "inbox show --consumer worker --id E-5", 1).await?;
    ensure!(several.stderr.contains("say --source with one of \"\", \"shop\""), "{several:?}");
    let page = call(&program, "inbox show --consumer worker --id E-5 --source=", 0).await?.stdout;
    let hash = "content sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
    ensure!(page.contains(hash) && page.contains("status         completed\n"), "{page}");
    let none = call(&program, "inbox show --consumer worker --id E-6", 1).await?;
    ensure!(none.stderr.contains("find such a message"), "{none:?}");

    call(&program, "inbox retry --consumer worker --id E-2", 1).await?;
    call(&program, "inbox retry --consumer mailer --id E-4", 1).await?;
    call(&program, "inbox retry --consumer worker --id E-1", 0).await?;
    call(&program, "inbox retry --consumer mailer --id E-3", 0).await?;
    let again = "select postrider.inbox_claim('worker', 'E-1')
        || ' ' || (postrider.inbox_begin('mailer', 'E-3')).verdict
        || ' ' || (select attempts from postrider.inbox where message_id = 'E-1')";
    ensure!(sql.query_one(again, &[]).await?.get::<_, &str>(0) == "process process 0");

    let early = call(&program, "inbox prune --older-than 7d --yes", 1).await?;
    ensure!(early.stderr.contains("protect consumer") && early.stderr.contains("22 days"), "{early:?}");
    let unsure = call(&program, "inbox prune --older-than 30d", 2).await?;
    ensure!(unsure.stderr.contains("--yes"), "{unsure:?}");
    let pruned = call(&program, "inbox prune --older-than 30d --yes", 0).await?.stdout;
    ensure!(pruned == "deleted 0 completed rows\n", "{pruned}");
    sql.batch_execute(
        "insert into postrider.inbox (consumer, message_id, status, received_at, completed_at)
         select 'worker', 'old ' || at, 'completed', at, at
         from generate_series(now() - interval '40 days', now() - interval '1 hour', '30 minutes') at",
    )
    .await?;
    let pruned = call(&program, "inbox prune --older-than 30d --consumer worker --yes", 0).await?.stdout;
    let count: i64 = pruned.split(' ').nth(1).unwrap_or_default().parse()?;
    ensure!((9 * 48..=10 * 48 + 2).contains(&count), "{pruned}");
    Ok(())
}
