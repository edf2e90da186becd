//! Servers and logins that are wrong: each stop's cure is carried out.

use anyhow::{Context as _, Result};
use testenv::{Postgres, PostgresOptions, Scope};

use crate::run::{self, Run};
use crate::stage::{LIMIT, Stage};
use crate::stops::{Stop, expect_stop};

const PASSWORD: &str = "relay-secret";

/// A role like the relay's but one that a test may spoil: the shared one belongs to all tests.
async fn role(stage: &mut Stage, attributes: &str) -> Result<String> {
    let role = stage.rig.scope.named("role");
    stage.execute(&format!("create role {role} {attributes} in role postrider_relay")).await?;
    let url = stage.rig.scope.postgres_url(&role, PASSWORD);
    stage.rig.program = stage.rig.program.clone().set("postgres.url", url);
    Ok(role)
}

/// The configured password is for a person to fill in.
fn fill_in(stop: Stop) -> Stop {
    let cures = stop.cures.iter().map(|cure| cure.replace("<the password that is configured>", PASSWORD));
    Stop { cures: cures.collect(), ..stop }
}

#[tokio::test]
async fn a_role_that_may_not_replicate_is_told_the_attribute() -> Result<()> {
    let mut stage = Stage::new("no replication").await?;
    let role = role(&mut stage, "login password 'relay-secret'").await?;
    let stop = stage.expect_stop_and_cure(&["SQLSTATE 42501", "the attribute is not inherited"]).await?;
    assert_eq!(stop.cures, [format!("alter role {role} replication")]);
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_a_stop() -> Result<()> {
    let mut stage = Stage::new("wrong password").await?;
    let role = role(&mut stage, "login replication password 'wr0ng-secret'").await?;
    let stop = fill_in(expect_stop(&stage.rig.program, &["SQLSTATE 28P01", "postgres.password_file"]).await?);
    assert_eq!(stop.cures, [format!("alter role {role} password '{PASSWORD}'")]);
    stage.mend(&stop).await?;
    stage.expect_delivery().await
}

#[tokio::test]
async fn a_role_that_is_missing_or_may_not_log_in_is_a_stop() -> Result<()> {
    let mut stage = Stage::new("no login").await?;
    let role = role(&mut stage, "nologin replication password 'relay-secret'").await?;
    let stop = stage.expect_stop_and_cure(&["SQLSTATE 28000", "the role has no LOGIN"]).await?;
    assert_eq!(stop.cures, [format!("alter role {role} login")]);

    stage.execute(&format!("drop role {role}")).await?;
    // The server tells a stranger no more than that the password is wrong.
    let stop = fill_in(expect_stop(&stage.rig.program, &["SQLSTATE 28P01"]).await?);
    assert_eq!(stop.cures, [format!("alter role {role} password '{PASSWORD}'")]);
    Ok(())
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_a_stop() -> Result<()> {
    let stage = Stage::new("no database").await?;
    let name = stage.rig.scope.named("new");
    let url = |url: String| url.replacen(&format!("/{}", stage.name()), &format!("/{name}"), 1);
    let program = stage.rig.program.clone().set("postgres.url", url(stage.rig.relay_url()));
    let admin = stage.rig.admin.clone().set("postgres.url", url(stage.rig.scope.admin_url()));
    let stop = expect_stop(&program, &["SQLSTATE 3D000", "does not exist"]).await?;
    assert_eq!(stop.cures, [format!("create database {name}"), "postrider init".to_owned()]);
    // A slot belongs to one database: this name is taken by the test's own.
    stage.execute(&format!("select pg_drop_replication_slot('{}')", stage.name())).await?;
    stage.carry_out(&stop.cures[0]).await?;
    run::expect(&admin, "init", 0).await?;
    // In the new database the role has no rights yet, which is another stop with its cure.
    let rights = expect_stop(&program, &["SQLSTATE 42501"]).await?;
    let sql = testenv::Sql::connect(&url(stage.rig.scope.admin_url())).await?;
    for cure in &rights.cures {
        sql.batch_execute(cure).await.with_context(|| format!("carry out {cure}"))?;
    }
    let mut relay = Run::start(&program)?;
    relay.wait_ready(LIMIT).await?;
    relay.expect_drain().await
}

#[tokio::test]
async fn a_server_that_does_not_decode_is_a_stop() -> Result<()> {
    let options = PostgresOptions { fsync: false, wal_level: "replica", ..PostgresOptions::default() };
    let mut server = Postgres::start(options).await?;
    let scope = Scope::shared("wal level").await?;
    let addresses = testenv::Addresses { postgres_port: server.port(), ..scope.addresses().clone() };
    let mut stage = Stage::bare(Scope::create(addresses, "wal level").await?).await?;
    let says = ["wal_level is replica", "takes effect when the server is restarted"];
    // `init` says the same, and leaves what does not need it.
    let (_, stderr) = run::expect(&stage.rig.admin, "init", 1).await?;
    assert!(says.iter().all(|part| stderr.contains(part)), "{stderr}");
    stage.rig.grant().await?;
    let stop = expect_stop(&stage.rig.program, &says).await?;
    assert_eq!(stop.cures, ["alter system set wal_level = 'logical'", "postrider init"]);
    stage.carry_out(&stop.cures[0]).await?;
    server.restart(testenv::Stop::Fast).await?;
    stage.sql = stage.rig.sql().await?;
    stage.carry_out(&stop.cures[1]).await?;
    stage.expect_delivery().await
}
