//! What is wrong at the broker, or away, is waited for: not ready, said once, and mended without a restart.

use std::time::Duration;

use anyhow::Result;
use testenv::Scope;
use testenv::relay::Program;

use crate::run::{Run, let_pass};
use crate::stage::{LIMIT, Stage};

/// The relay runs on, not ready because of the broker, and has said so once, with these words.
async fn expect_wait(program: &Program, says: &[&str]) -> Result<Run> {
    let mut relay = Run::start(program)?;
    let line = relay.wait_log("no broker, coming back", LIMIT).await?;
    for part in says {
        assert!(line.contains(part), "expect {part:?} in {line}");
    }
    relay.wait_reason("broker", LIMIT).await?;
    // Some tries later.
    let_pass(Duration::from_secs(1)).await;
    assert_eq!(relay.count_lines("no broker, coming back"), 1, "{}", relay.log_text());
    assert_eq!(relay.get("/livez").await?.status, 200);
    let status = relay.status().await?;
    assert!(
        says.iter().all(|part| status["detail"].as_str().is_some_and(|detail| detail.contains(part))),
        "{status}"
    );
    Ok(relay)
}

async fn expect_recovery(stage: &Stage, mut relay: Run) -> Result<()> {
    relay.wait_ready(LIMIT).await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    relay.expect_drain().await
}

fn patient(stage: &Stage) -> Program {
    stage.rig.program.clone().set("retry.max_ms", "200")
}

#[tokio::test]
async fn a_wrong_broker_password_is_waited_out() -> Result<()> {
    let stage = Stage::new("broker password").await?;
    let (ctl, user) = (stage.rig.scope.ctl(), stage.name());
    ctl.add_user(user, "wr0ng-secret").await?;
    ctl.set_permissions("/", user, [".*", ".*", ".*"]).await?;
    let url = stage.rig.scope.amqp_url_for(user, "br0ker-secret");
    let says = format!("as {user:?}");
    let relay =
        expect_wait(&patient(&stage).set("rabbitmq.url", url), &["403", "ACCESS_REFUSED", &says]).await?;
    ctl.run(&["change_password", user, "br0ker-secret"]).await?;
    expect_recovery(&stage, relay).await
}

#[tokio::test]
async fn a_missing_vhost_is_waited_out() -> Result<()> {
    let mut stage = Stage::new("vhost").await?;
    // The queue goes with the vhost, so the test asks about a vhost of another name.
    let url = stage.rig.scope.amqp_url().replace("/%2F", &format!("/{}", stage.name()));
    let says = format!("on vhost {:?}", stage.name());
    let relay = expect_wait(&patient(&stage).set("rabbitmq.url", url), &[&says]).await?;
    stage.rig.scope.take_vhost().await?;
    stage.rig.queue = testenv::consumer::Queue::bound(
        &stage.rig.scope.amqp_url(),
        stage.name(),
        testenv::consumer::QueueKind::Classic,
        stage.name(),
    )
    .await?;
    expect_recovery(&stage, relay).await
}

#[tokio::test]
async fn an_exchange_that_is_missing_or_of_another_type_is_waited_out() -> Result<()> {
    let stage = Stage::new("exchange").await?;
    let late = stage.rig.scope.named("late");
    let program = patient(&stage).set("rabbitmq.exchange", &late).set("rabbitmq.declare", "false");
    let says = format!("find exchange {late:?}: 404");
    let relay = expect_wait(&program, &[&says]).await?;
    stage.rig.queue.bind(&late, "#").await?;
    expect_recovery(&stage, relay).await?;

    let program = patient(&stage).set("rabbitmq.exchange_type", "direct");
    let says = format!("declare exchange {:?} as durable direct: 406", stage.name());
    let mut relay = expect_wait(&program, &[&says, "received 'direct' but current is 'topic'"]).await?;
    // An event that is owed meanwhile does not hold up the end.
    let id = stage.write_event().await?;
    relay.wait_metric("postrider_in_flight_events", &[], 1.0).await?;
    relay.expect_drain().await?;
    let mut relay = stage.ready().await?;
    stage.wait_message(&id).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for() -> Result<()> {
    let stage = Stage::bare(Scope::shared("away").await?).await?;
    // Bound and not listened to: nobody else can take it.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = nobody.local_addr()?.port();
    drop(nobody);
    let url = format!("postgres://postrider_relay:relay-secret@127.0.0.1:{port}/shop");
    let mut relay = Run::start(&stage.rig.program.clone().set("postgres.url", url))?;
    let line = relay.wait_log("lost Postgres, coming back", LIMIT).await?;
    assert!(line.contains(&format!("127.0.0.1:{port}")), "{line}");
    relay.wait_reason("postgres", LIMIT).await?;
    assert_eq!(relay.get("/livez").await?.status, 200);
    let_pass(Duration::from_secs(1)).await;
    assert_eq!(relay.count_lines("lost Postgres"), 1, "{}", relay.log_text());
    relay.expect_drain().await
}
