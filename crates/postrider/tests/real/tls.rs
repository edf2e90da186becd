//! Both sides encrypted, by certificates of private authorities.

use std::path::Path;

use anyhow::{Context as _, Result};
use testenv::consumer::Queue;
use testenv::relay::Program;
use testenv::{Certificates, Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Tls};

use crate::run::Run;
use crate::stage::{LIMIT, Stage};
use crate::stops::expect_stop;

fn authority(certificates: Option<&Certificates>) -> Result<&str> {
    certificates.context("the server has certificates")?.authority().to_str().context("UTF-8")
}

/// The relay as it is configured, but with this host and these words behind its URL.
fn with_url(stage: &Stage, host: &str, words: &str) -> Program {
    let url = stage.rig.relay_url().replace("@127.0.0.1:", &format!("@{host}:"));
    stage.rig.program.clone().set("postgres.url", format!("{url}?{words}"))
}

/// It delivers, and all its sessions are encrypted or none is.
async fn expect_delivery(stage: &Stage, program: &Program, encrypted: bool) -> Result<()> {
    let mut relay = Run::start(program)?;
    relay.wait_ready(LIMIT).await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    let sessions = stage
        .text(
            "select string_agg(ssl::text, ' ') from pg_stat_ssl join pg_stat_activity using (pid)
             where usename = 'postrider_relay'",
        )
        .await?;
    let three = format!("{encrypted} {encrypted} {encrypted}");
    assert_eq!(sessions, three, "the admin session, the walsender, and the quarantine's");
    relay.expect_drain().await
}

/// It is not let in, says why, and goes on trying.
async fn expect_refusal(program: &Program, reason: &str, says: &str) -> Result<()> {
    let mut relay = Run::start(program)?;
    let line = relay.wait_log("coming back", LIMIT).await?;
    assert!(line.contains(says), "expect {says:?} in {line}");
    relay.wait_reason(reason, LIMIT).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn the_database_is_believed_by_its_certificate() -> Result<()> {
    let options = PostgresOptions { fsync: false, tls: Tls::Offered, ..PostgresOptions::default() };
    let server = Postgres::start(options.clone()).await?;
    let ours = authority(server.certificates())?;
    let stranger = Postgres::start(options).await?;
    let theirs = authority(stranger.certificates())?;
    let stage = Stage::on_server(&server, "tls postgres").await?;

    let full = format!("sslmode=verify-full&sslrootcert={ours}");
    expect_delivery(&stage, &with_url(&stage, "localhost", &full), true).await?;
    expect_delivery(&stage, &with_url(&stage, "127.0.0.1", &full), true).await?;
    // Another name at the same address.
    let wrong = format!("{full}&hostaddr=127.0.0.1");
    expect_refusal(&with_url(&stage, "db.example", &wrong), "postgres", "not valid for name").await?;
    let chain = format!("sslmode=verify-ca&sslrootcert={ours}&hostaddr=127.0.0.1");
    expect_delivery(&stage, &with_url(&stage, "db.example", &chain), true).await?;
    let unknown = format!("sslmode=verify-ca&sslrootcert={theirs}");
    expect_refusal(&with_url(&stage, "localhost", &unknown), "postgres", "invalid peer certificate").await?;

    expect_delivery(&stage, &with_url(&stage, "localhost", "sslmode=require"), true).await?;
    expect_delivery(&stage, &with_url(&stage, "localhost", "sslmode=prefer"), true).await?;
    expect_delivery(&stage, &with_url(&stage, "localhost", "sslmode=disable"), false).await?;

    // A server that refuses plain text.
    let hba = server.socket_folder().join("data/pg_hba.conf");
    let lines = std::fs::read_to_string(&hba).context("read pg_hba.conf")?;
    std::fs::write(&hba, format!("hostnossl all postrider_relay all reject\n{lines}")).context("write it")?;
    server.reload()?;
    let plain = with_url(&stage, "localhost", "sslmode=disable");
    let stop = testenv::eventually("the reload", LIMIT, async || {
        Ok(stage
            .text("select (count(*) > 0)::text from pg_hba_file_rules where type = 'hostnossl'")
            .await?
            .eq("true")
            .then_some(()))
    });
    stop.await?;
    let stop = expect_stop(&plain, &["SQLSTATE 28000", "pg_hba.conf"]).await?;
    std::fs::write(&hba, lines).context("let everybody in again")?;
    assert_eq!(stop.cures, ["select pg_reload_conf()"]);
    stage.mend(&stop).await?;
    expect_delivery(&stage, &plain, false).await?;
    expect_delivery(&stage, &with_url(&stage, "localhost", "sslmode=allow"), false).await
}

#[tokio::test]
async fn the_broker_is_believed_by_its_certificate() -> Result<()> {
    let broker = RabbitMq::start(RabbitMqOptions { tls: true, ..RabbitMqOptions::default() }).await?;
    let mut stage = Stage::new("tls broker").await?;
    stage.rig.queue =
        Queue::bound(&broker.guest_url(), stage.name(), testenv::consumer::QueueKind::Classic, stage.name())
            .await?;
    let url = broker.tls_url("guest", "guest", "/").context("the broker has an amqps port")?;
    let program = |words: &str| stage.rig.program.clone().set("rabbitmq.url", format!("{url}?{words}"));
    let trusted = format!("cacertfile={}", authority(broker.certificates())?);
    let mut relay = Run::start(&program(&trusted))?;
    relay.wait_ready(LIMIT).await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    let sessions = broker.ctl().run(&["list_connections", "ssl", "protocol"]).await?;
    assert!(sessions.contains("true"), "the relay's connection is encrypted: {sessions}");
    relay.expect_drain().await?;

    expect_refusal(
        &program(&format!("{trusted}&server_name_indication=mq.example")),
        "broker",
        "not valid for name",
    )
    .await?;
    // The system's authorities do not know this one.
    expect_refusal(&program(""), "broker", "invalid peer certificate").await?;
    let nowhere = Path::new("/nowhere/authority.pem");
    expect_refusal(&program(&format!("cacertfile={}", nowhere.display())), "broker", "/nowhere/authority.pem")
        .await
}
