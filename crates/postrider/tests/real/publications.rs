//! Publications and tables that are wrong when a relay starts.

use anyhow::Result;
use testenv::Scope;

use crate::run;
use crate::stage::{Stage, Version};
use crate::stops::expect_stop;

#[tokio::test]
async fn no_publication_is_a_stop() -> Result<()> {
    let stage = Stage::new("no publication").await?;
    stage.execute(&format!("drop publication {}", stage.name())).await?;
    let says = format!("the publication {} does not exist", stage.name());
    let stop = stage.expect_stop_and_cure(&[&says, "it must be older than the slot"]).await?;
    assert_eq!(stop.cures, ["postrider slot drop --yes", "postrider init"]);
    Ok(())
}

/// The slot of somebody who made it by hand and thought of the publication later.
async fn check_younger(version: Version) -> Result<()> {
    let stage = Stage::of_version(version, "younger publication").await?;
    let name = stage.name();
    stage
        .execute(&format!(
            "drop publication {name}; select pg_drop_replication_slot('{name}'); delete from postrider.relay"
        ))
        .await?;
    stage.execute(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await?;
    stage
        .execute(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type)
               values ('order', 'between', 'placed');
             create publication {name} for table postrider.outbox with (publish = 'insert')"
        ))
        .await?;
    let stop =
        stage.expect_stop_and_cure(&["may be younger than the slot", "insert those rows again"]).await?;
    assert_eq!(stop.cures, ["postrider slot drop --yes", "postrider slot create"]);
    Ok(())
}

#[tokio::test]
async fn a_publication_younger_than_the_slot_is_a_stop() -> Result<()> {
    check_younger(Version::Installed).await
}

#[tokio::test]
async fn a_publication_younger_than_the_slot_is_a_stop_on_18() -> Result<()> {
    check_younger(Version::V18).await
}

#[tokio::test]
async fn a_table_that_is_missing_unlogged_or_published_by_partition_is_a_stop() -> Result<()> {
    let stage = Stage::new("wrong table").await?;
    let name = stage.name();
    stage.execute("drop table postrider.outbox").await?;
    let stop = stage.expect_stop_and_cure(&["the table postrider.outbox does not exist"]).await?;
    assert!(stop.cures[0].starts_with("create table postrider.outbox ("), "{:?}", stop.cures);
    assert_eq!(stop.cures[1..], [format!("alter publication {name} add table postrider.outbox")]);

    // One thing after the other: Postgres publishes no unlogged table.
    stage
        .execute(&format!(
            "alter publication {name} drop table postrider.outbox; alter table postrider.outbox set unlogged"
        ))
        .await?;
    let stop = expect_stop(&stage.rig.program, &["the table postrider.outbox is unlogged"]).await?;
    assert_eq!(stop.cures, ["alter table postrider.outbox set logged"]);
    stage.mend(&stop).await?;
    stage.expect_stop_and_cure(&["does not cover the table postrider.outbox"]).await?;

    stage
        .execute(&format!(
            "alter table postrider.outbox rename to outbox_1;
             alter publication {name} drop table postrider.outbox_1;
             create table postrider.outbox (like postrider.outbox_1 including defaults)
               partition by list (aggregate_type);
             alter table postrider.outbox attach partition postrider.outbox_1 default;
             alter publication {name} set (publish_via_partition_root = false);
             alter publication {name} add table postrider.outbox"
        ))
        .await?;
    let stop = stage.expect_stop_and_cure(&["under the names of its partitions"]).await?;
    assert_eq!(stop.cures, [format!("alter publication {name} set (publish_via_partition_root = true)")]);
    Ok(())
}

#[tokio::test]
async fn a_database_without_anything_is_told_what_to_do_step_by_step() -> Result<()> {
    let stage = Stage::bare(Scope::shared("nothing").await?).await?;
    // The role exists, as on every server where another database has a relay.
    stage.execute(postrider_postgres::SCHEMA_SQL).await?;
    stage.rig.grant().await?;
    stage.execute("drop schema postrider cascade").await?;

    let first = expect_stop(&stage.rig.program, &["the schema postrider is not complete"]).await?;
    assert_eq!(first.cures, ["postrider init"]);
    let (printed, _) = run::expect(&stage.rig.admin, "init", 0).await?;
    assert_eq!(printed.matches(": created").count(), 11, "{printed}");
    // `init` makes no roles: the relay may not look, and is told the rights that it needs.
    let stop =
        stage.expect_stop_and_cure(&["SQLSTATE 42501", "lacks a right in the schema postrider"]).await?;
    assert_eq!(stop.cures[0], "grant usage on schema postrider to postrider_relay");
    Ok(())
}
