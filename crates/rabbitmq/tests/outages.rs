//! Ring `real`: a broker that does not let us in is an outage with the reason in words, and it ends by itself.

mod rig;

use std::time::Duration;

use anyhow::{Context as _, Result};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;
use postrider_rabbitmq::{Endpoint, Outage, OutageKind, Publisher};
use postrider_relay::Verdict;
use rig::{Desk, answer, down, message, ready, settings, window};
use testenv::{RabbitMq, RabbitMqOptions, Scope, Turn};

fn check(outage: &Outage, kind: OutageKind, words: &[&str]) {
    assert_eq!(outage.kind, kind, "{outage}");
    for word in words {
        assert!(outage.reason.contains(word), "{word:?} is not in {outage}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_once_and_not_shown() -> Result<()> {
    let scope = Scope::shared("login").await?;
    let settings = settings(&scope.amqp_url_for("guest", "wr0ng"), scope.name())?;
    let mut publisher = Publisher::start(settings);
    let outage = down(&mut publisher).await?;
    check(&outage, OutageKind::Login, &["\"guest\"", "403", "ACCESS_REFUSED"]);
    assert!(!outage.reason.contains("wr0ng"), "{outage}");
    // Several attempts later nothing new is said.
    let again = tokio::time::timeout(Duration::from_secs(2), publisher.next()).await;
    assert!(again.is_err(), "{again:?}");
    publisher.close(rig::LIMIT).await;
    Ok(())
}

#[tokio::test]
async fn a_missing_vhost_is_waited_for() -> Result<()> {
    let scope = Scope::shared("vhost").await?;
    let url = scope.addresses().amqp_url("guest", "guest", scope.name());
    let mut publisher = Publisher::start(settings(&url, "postrider")?);
    check(&down(&mut publisher).await?, OutageKind::Vhost, &["530", scope.name(), "not found"]);
    scope.ctl().add_vhost(scope.name()).await?;
    // The vhost is there, and guest may not use it yet: another reason is told.
    check(&down(&mut publisher).await?, OutageKind::Vhost, &["530", "refused"]);
    scope.ctl().set_permissions(scope.name(), "guest", [".*", ".*", ".*"]).await?;
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn an_exchange_of_another_type_is_waited_for() -> Result<()> {
    let scope = Scope::shared("contradiction").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    desk.channel
        .exchange_declare(scope.name().into(), ExchangeKind::Fanout, options, FieldTable::default())
        .await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    let outage = down(&mut publisher).await?;
    check(&outage, OutageKind::Exchange, &["406", scope.name(), "topic", "fanout"]);
    desk.channel.exchange_delete(scope.name().into(), ExchangeDeleteOptions::default()).await?;
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn an_exchange_that_is_not_declared_must_be_there() -> Result<()> {
    let scope = Scope::shared("missing").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    let mut settings = settings(&scope.amqp_url(), scope.name())?;
    settings.declare = false;
    let mut publisher = Publisher::start(settings);
    check(&down(&mut publisher).await?, OutageKind::Exchange, &["find exchange", "404", scope.name()]);
    desk.exchange(scope.name()).await?;
    assert_eq!(ready(&mut publisher).await?.frame_max, 131_072);
    Ok(())
}

#[tokio::test]
async fn a_user_who_may_not_declare_is_told_so() -> Result<()> {
    let scope = Scope::shared("rights").await?;
    scope.ctl().add_user(scope.name(), "secret").await?;
    scope.ctl().set_permissions("/", scope.name(), ["^$", ".*", "^$"]).await?;
    let url = scope.amqp_url_for(scope.name(), "secret");
    let mut publisher = Publisher::start(settings(&url, scope.name())?);
    check(&down(&mut publisher).await?, OutageKind::Exchange, &["declare exchange", "403", "access"]);
    // The default exchange is never declared, and always there.
    let mut publisher = Publisher::start(settings(&url, "")?);
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn the_next_endpoint_has_its_turn() -> Result<()> {
    let scope = Scope::shared("rotation").await?;
    let mut settings = settings(&scope.amqp_url(), scope.name())?;
    let nobody = Endpoint::parse("amqp://127.0.0.1:1")?;
    settings.endpoints.insert(0, nobody);
    let mut publisher = Publisher::start(settings);
    check(&down(&mut publisher).await?, OutageKind::Unreachable, &["127.0.0.1:1", "refused"]);
    ready(&mut publisher).await?;
    Ok(())
}

#[tokio::test]
async fn amqps_needs_the_right_authority() -> Result<()> {
    let _turn = Turn::take().await?;
    let server = RabbitMq::start(RabbitMqOptions { tls: true, ..RabbitMqOptions::default() }).await?;
    let url = server.tls_url("guest", "guest", "/").context("the server has a TLS port")?;
    let authority =
        server.certificates().context("the server has certificates")?.authority().display().to_string();

    let mut publisher = Publisher::start(settings(&url, "postrider")?);
    check(&down(&mut publisher).await?, OutageKind::Tls, &["agree on TLS", "UnknownIssuer"]);
    let mut publisher = Publisher::start(settings(&format!("{url}?cacertfile=/nowhere.pem"), "postrider")?);
    check(&down(&mut publisher).await?, OutageKind::Tls, &["read /nowhere.pem"]);
    let foreign = format!("{url}?cacertfile={authority}&server_name_indication=rabbit.example");
    let mut publisher = Publisher::start(settings(&foreign, "postrider")?);
    check(&down(&mut publisher).await?, OutageKind::Tls, &["not valid for name"]);

    let mut publisher = Publisher::start(settings(&format!("{url}?cacertfile={authority}"), "postrider")?);
    ready(&mut publisher).await?;
    publisher.publish(window(1, (0..500).map(|number| message(number, "postrider", "x"))));
    let answer = answer(&mut publisher).await?;
    assert_eq!(answer.verdicts, [Verdict::Returned { code: 312 }; 500]);
    publisher.close(rig::LIMIT).await;
    Ok(())
}
