//! Every stop of the contract: it names its cure, and after the cure the relay runs.

use anyhow::{Context as _, Result};
use postrider_postgres::{Admin, Error, Reason, Server};
use testenv::PostgresOptions;

use crate::rig::{LIMIT, RELAY, Rig, options, receives, socket_url, start, stopped, watermark};

/// Breaks a ready database, sees the stop, applies the cure, sees the relay run.
async fn broken(name: &str, breaking: &str, reason: Reason) -> Result<()> {
    let rig = Rig::ready(name).await?;
    // One by one: a slot is not created in a transaction that has written.
    for statement in breaking.split(';') {
        rig.execute(statement).await?;
    }
    rig.stops_and_is_mended(reason).await
}

macro_rules! stops {
    ($($test:ident: $breaking:literal => $reason:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() -> Result<()> {
            broken(stringify!($test), $breaking, Reason::$reason).await
        })*
    };
}

stops! {
    slot_missing: "select pg_drop_replication_slot('slot_missing')" => NoSlot;
    slot_recreated_before_the_first_start: "
        select pg_drop_replication_slot('slot_recreated_before_the_first_start');
        insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('t', 'lost', 'e');
        select pg_create_logical_replication_slot('slot_recreated_before_the_first_start', 'pgoutput')"
        => SlotReplaced;
    slot_recreated_with_nothing_between: "
        select pg_drop_replication_slot('slot_recreated_with_nothing_between');
        select pg_create_logical_replication_slot('slot_recreated_with_nothing_between', 'pgoutput')"
        => SlotReplaced;
    slot_moved: "
        insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('t', 'lost', 'e');
        select pg_replication_slot_advance('slot_moved', pg_current_wal_lsn())" => SlotReplaced;
    slot_physical: "
        select pg_drop_replication_slot('slot_physical');
        select pg_create_physical_replication_slot('slot_physical')" => SlotKind;
    slot_of_another_plugin: "
        select pg_drop_replication_slot('slot_of_another_plugin');
        select pg_create_logical_replication_slot('slot_of_another_plugin', 'test_decoding')" => SlotKind;
    publication_missing: "drop publication postrider" => NoPublication;
    publication_recreated: "
        drop publication postrider;
        create publication postrider for table postrider.outbox, postrider.command" => PublicationReplaced;
    publication_without_the_table: "alter publication postrider drop table postrider.outbox"
        => PublicationWithoutTable;
    publication_without_insert: "alter publication postrider set (publish = 'update')"
        => PublicationWithoutInsert;
    publication_with_a_row_filter: "
        alter publication postrider set table postrider.outbox where (event_type = 'x'), postrider.command"
        => PublicationNarrowed;
    publication_with_a_column_list: "
        alter publication postrider set table postrider.outbox (id), postrider.command" => PublicationNarrowed;
    table_missing: "drop table postrider.outbox" => NoTable;
    cluster_replaced: "update postrider.relay set system_identifier = '1'" => SlotElsewhere;
    timeline_changed: "update postrider.relay set timeline = 7" => SlotElsewhere;
    slot_older_than_its_publication: "
        delete from postrider.relay;
        drop publication postrider;
        create publication postrider for table postrider.outbox, postrider.command" => PublicationYounger;
    role_without_rights: "revoke all on postrider.relay from postrider_relay" => Rights;
    quarantine_missing: "drop table postrider.quarantine" => NoSchema;
    role_without_the_quarantine: "revoke update on postrider.quarantine from postrider_relay" => Rights;
    role_without_the_schema: "revoke all on schema postrider from postrider_relay" => Rights;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_was_made() -> Result<()> {
    let rig = Rig::empty("nothing_was_made").await?;
    rig.stops_and_is_mended(Reason::NoSchema).await
}

/// On a server without other slots it can be proven that the publication is older than the slot.
#[tokio::test(flavor = "multi_thread")]
async fn slot_not_recorded() -> Result<()> {
    let server = start(options()).await?;
    let rig = Rig::ready_on(&server, "unrecorded").await?;
    rig.execute("delete from postrider.relay").await?;
    rig.stops_and_is_mended(Reason::SlotUnrecorded).await?;
    rig.slot_is_free().await?;
    rig.execute("drop table postrider.relay").await?;
    rig.stops_and_is_mended(Reason::NoSchema).await
}

#[tokio::test(flavor = "multi_thread")]
async fn table_unlogged() -> Result<()> {
    let rig = Rig::empty("table_unlogged").await?;
    // A table that is listed cannot be made so.
    rig.execute("create publication postrider for all tables").await?;
    rig.init().await?;
    rig.execute("alter table postrider.outbox set unlogged").await?;
    rig.stops_and_is_mended(Reason::TableNotLogged).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_of_another_database() -> Result<()> {
    let rig = Rig::ready("slot_of_another_database").await?;
    let elsewhere = Rig::empty("another_database").await?;
    rig.execute("select pg_drop_replication_slot('slot_of_another_database')").await?;
    elsewhere
        .execute("select pg_create_logical_replication_slot('slot_of_another_database', 'pgoutput')")
        .await?;
    rig.stops_and_is_mended(Reason::SlotKind).await
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_outbox_by_its_partitions() -> Result<()> {
    let rig = Rig::empty("partitioned").await?;
    rig.execute(
        "create schema postrider;
         create table postrider.outbox (id uuid default gen_random_uuid(), aggregate_type text, aggregate_id text,
           event_type text, payload json) partition by list (aggregate_type);
         create table postrider.t partition of postrider.outbox default;
         create table postrider.command (id int);
         create publication postrider for table postrider.outbox, postrider.command",
    )
    .await?;
    let stop = stopped(rig.init().await)?;
    assert_eq!(stop.reason, Reason::PublicationByPartition, "{stop}");
    rig.apply(&stop).await?;
    rig.init().await?;
    let (_admin, mut stream) = rig.run().await?;
    rig.insert("whole").await?;
    receives(&mut stream, "whole").await
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_recreated_after_a_drain() -> Result<()> {
    let rig = Rig::ready("slot_recreated_after_a_drain").await?;
    let (_admin, mut stream) = rig.run().await?;
    rig.insert("read").await?;
    receives(&mut stream, "read").await?;
    let end = rig.inspect().await?.wal_lsn;
    assert_eq!(stream.close(Some(watermark(end)), LIMIT).await, Some(end));
    recreate(&rig).await?;
    rig.stops_and_is_mended(Reason::SlotReplaced).await
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_recreated_after_a_kill() -> Result<()> {
    let rig = Rig::ready("slot_recreated_after_a_kill").await?;
    let (admin, mut stream) = rig.run().await?;
    rig.insert("read").await?;
    receives(&mut stream, "read").await?;
    // What the shell does every report_every_ms.
    testenv::eventually("the count to be recorded", LIMIT, async || {
        let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
        Ok(seen.record.filter(|record| record.decoded_txns > 0 && record.watermark.is_none()))
    })
    .await?;
    drop(stream);
    rig.slot_is_free().await?;
    recreate(&rig).await?;
    rig.stops_and_is_mended(Reason::SlotReplaced).await
}

async fn recreate(rig: &Rig) -> Result<()> {
    let slot = rig.subject.slot();
    rig.execute(&format!("select pg_drop_replication_slot('{slot}')")).await?;
    rig.execute(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_server_is_no_recreated_slot() -> Result<()> {
    let mut server = start(options()).await?;
    let rig = Rig::ready_on(&server, "crashed").await?;
    let (admin, mut stream) = rig.run().await?;
    rig.insert("read").await?;
    receives(&mut stream, "read").await?;
    testenv::eventually("the count to be recorded", LIMIT, async || {
        let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
        Ok(seen.record.filter(|record| record.decoded_txns > 0))
    })
    .await?;
    server.restart(testenv::Stop::Immediate).await?;
    drop(stream);
    let (_admin, mut stream) = rig.run().await?;
    receives(&mut stream, "read").await
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_lost() -> Result<()> {
    let server = start(PostgresOptions { max_slot_wal_keep_size_mb: Some(1), ..options() }).await?;
    let rig = Rig::ready_on(&server, "lost").await?;
    for _ in 0..4 {
        rig.execute("create table if not exists filler (id int); insert into filler values (1)").await?;
        rig.execute("select pg_switch_wal()").await?;
    }
    rig.execute("checkpoint").await?;
    rig.stops_and_is_mended(Reason::SlotLost).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wal_level_replica() -> Result<()> {
    let mut server = start(PostgresOptions { wal_level: "replica", ..options() }).await?;
    let rig = Rig::empty_on(&server, "replica").await?;
    let stop = stopped(rig.init().await)?;
    assert_eq!(stop.reason, Reason::WalLevel, "{stop}");
    assert_eq!(stop.cure, ["alter system set wal_level = 'logical'", "postrider init"]);
    rig.execute(&stop.cure[0]).await?;
    drop(rig);
    server.restart(testenv::Stop::Fast).await?;
    // The database is there, and so is all before the slot.
    let owner_url = socket_url(&server, "postgres", "replica");
    let owner = Admin::connect(&Server::parse(&owner_url)?).await?;
    let subject = postrider_postgres::Subject::new(
        "replica",
        "postrider",
        vec![postrider_postgres::TableName::default_outbox()],
    )?;
    let mut made = Vec::new();
    owner.init(&subject, crate::rig::INIT, &mut |progress| made.push(progress)).await?;
    assert!(made.len() > 5, "{made:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn role_that_may_not_replicate() -> Result<()> {
    let server = start(options()).await?;
    let rig = Rig::ready_on(&server, "replicate").await?;
    rig.execute(&format!("alter role {RELAY} noreplication")).await?;
    let stop = stopped(rig.run().await)?;
    assert_eq!(stop.reason, Reason::Rights, "{stop}");
    assert_eq!(stop.cure, ["alter role postrider_relay replication"]);
    rig.mend(stop).await
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_that_fail() -> Result<()> {
    let server = start(options()).await?;
    let rig = Rig::ready_on(&server, "logins").await?;
    let login = async |url: &str| stopped(Admin::connect(&Server::parse(url)?).await);

    let stop = login(&server.url(RELAY, "wrong", "logins")).await?;
    assert_eq!(stop.reason, Reason::Password, "{stop}");
    assert_eq!(stop.cure, ["alter role postrider_relay password '<the password that is configured>'"]);
    assert!(!stop.to_string().contains("wrong"), "{stop}");

    let without = server.url(RELAY, "", "logins").replace(":@", "@");
    assert_eq!(login(&without).await?.reason, Reason::Password);

    let stop = login(&server.url(RELAY, crate::rig::RELAY_PASSWORD, "nowhere")).await?;
    assert_eq!(stop.reason, Reason::NoDatabase, "{stop}");
    rig.execute(&stop.cure[0]).await?;

    rig.execute(&format!("alter role {RELAY} nologin")).await?;
    let stop = stopped(rig.run().await)?;
    assert_eq!(stop.reason, Reason::Login, "{stop}");
    rig.mend(stop).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_dropped_while_running() -> Result<()> {
    let rig = Rig::ready("publication_dropped_while_running").await?;
    let (admin, mut stream) = rig.run().await?;
    rig.insert("before").await?;
    receives(&mut stream, "before").await?;
    rig.execute("drop publication postrider").await?;
    rig.insert("after").await?;
    let stop = stopped(admin.check(&rig.subject, Some(stream.walsender_pid())).await)?;
    assert_eq!(stop.reason, Reason::NoPublication, "{stop}");
    // Up to PostgreSQL 17 the stream fails as well, and says the same.
    let failed = async {
        loop {
            if let Err(e) = stream.next().await {
                return e;
            }
        }
    };
    match tokio::time::timeout(LIMIT, failed).await.context("the stream to fail")? {
        Error::Stop(stop) => assert_eq!(stop.reason, Reason::NoPublication, "{stop}"),
        e => panic!("{e}"),
    }
    drop(stream);
    rig.slot_is_free().await?;
    rig.mend(stop).await
}
