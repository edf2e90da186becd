//! A publication that is altered or dropped while a relay runs: the server passes over what is inserted then,
//! and the relay must not.

use anyhow::{Context as _, Result, ensure};
use testenv::oracle::{Commits, Slot};

use crate::stage::{Stage, Version};
use crate::stops::stopped;

/// What an administrator does; `{p}` is the publication.
struct Alteration {
    what: &'static str,
    sql: &'static str,
    /// One of these.
    says: &'static [&'static str],
    cure: &'static [&'static str],
}

const NEW_SLOT: &[&str] = &["postrider slot drop --yes", "postrider slot create"];

const ALTERATIONS: [Alteration; 6] = [
    Alteration {
        what: "table dropped",
        sql: "alter publication {p} drop table postrider.outbox",
        says: &["does not cover the table postrider.outbox"],
        cure: &["alter publication {p} add table postrider.outbox"],
    },
    Alteration {
        what: "inserts dropped",
        sql: "alter publication {p} set (publish = 'update, delete')",
        says: &["does not publish inserts"],
        cure: &["alter publication {p} set (publish = 'insert')"],
    },
    Alteration {
        what: "row filter",
        sql: "alter publication {p} set table postrider.outbox where (event_version > 1)",
        says: &["has a row filter or a column list on the table postrider.outbox"],
        cure: &[
            "alter publication {p} drop table postrider.outbox",
            "alter publication {p} add table postrider.outbox",
        ],
    },
    Alteration {
        what: "column list",
        sql: "alter publication {p} set table postrider.outbox (id, aggregate_type, aggregate_id)",
        says: &["has a row filter or a column list on the table postrider.outbox"],
        cure: &[
            "alter publication {p} drop table postrider.outbox",
            "alter publication {p} add table postrider.outbox",
        ],
    },
    Alteration {
        what: "dropped",
        sql: "drop publication {p}",
        says: &["the publication {p} does not exist"],
        cure: &["postrider slot drop --yes", "postrider init"],
    },
    Alteration {
        what: "dropped and made again",
        sql: "begin; drop publication {p};
              insert into postrider.outbox (aggregate_type, aggregate_id, event_type)
                values ('order', 'unpublished', 'placed');
              commit; create publication {p} for table postrider.outbox with (publish = 'insert')",
        // Which of the two depends on who sees it first: the check, or the stream at the insert between.
        says: &["was dropped and created again", "is younger than the WAL that the slot still reads"],
        cure: NEW_SLOT,
    },
];

#[tokio::test]
async fn what_an_altered_publication_hides_is_not_passed_over() -> Result<()> {
    for alteration in &ALTERATIONS {
        check(Version::Installed, alteration).await.with_context(|| alteration.what)?;
    }
    Ok(())
}

#[tokio::test]
async fn what_an_altered_publication_hides_is_not_passed_over_on_18() -> Result<()> {
    for alteration in &ALTERATIONS {
        check(Version::V18, alteration).await.with_context(|| alteration.what)?;
    }
    Ok(())
}

async fn check(version: Version, alteration: &Alteration) -> Result<()> {
    let mut stage = Stage::of_version(version, alteration.what).await?;
    // The default: long enough for the server to pass over the event before anybody looks.
    stage.rig.program = stage.rig.program.clone().set("postgres.report_every_ms", "1000");
    let name = |text: &str| text.replace("{p}", stage.name());
    // The witness reads by a publication of its own, which nobody touches.
    let witness = stage.rig.scope.named("witness");
    stage.execute(&format!("create publication {witness} for table postrider.outbox")).await?;
    Commits::watch(&stage.sql, &witness).await?;
    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;

    stage.execute(&name(alteration.sql)).await?;
    let row = stage
        .sql
        .query_one(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('order', 'meanwhile', 'placed', '\"p4yl04d\"')
             returning id::text, (pg_current_xact_id()::text::bigint & 4294967295)::text",
            &[],
        )
        .await?;
    let (meanwhile, xid): (String, String) = (row.get(0), row.get(1));
    let stop = stopped(&mut relay, &[]).await?;
    ensure!(
        alteration.says.iter().any(|says| stop.text.contains(&name(says))),
        "{}: expect one of {:?} in:\n{}",
        alteration.what,
        alteration.says,
        stop.text
    );
    let cure: Vec<String> = alteration.cure.iter().map(|line| name(line)).collect();
    ensure!(stop.cures == cure, "{}: expect the cure {cure:?} in:\n{}", alteration.what, stop.text);

    stage.wait_slot_free().await?;
    let commits = Commits::read(&stage.sql, &witness, &witness).await?;
    let xid: u32 = xid.parse()?;
    let commit = commits.iter().find(|commit| commit.xid == xid).context("the event has a commit")?;
    let slot = Slot::read(&stage.sql, stage.name()).await?.context("the slot")?;
    ensure!(
        slot.confirmed_flush_lsn <= commit.commit_lsn,
        "the slot has passed the event: {slot:?}, {commit:?}; the log:\n{}",
        stop.text
    );

    stage.mend(&stop).await?;
    stage.expect_delivery().await.with_context(|| format!("after the cure of:\n{}", stop.text))?;
    // What was hidden has to be inserted again.
    stage
        .execute(&format!(
            "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
             select aggregate_type, aggregate_id, event_type, payload from postrider.outbox
             where id = '{meanwhile}'"
        ))
        .await?;
    stage.expect_delivery().await?;
    Ok(())
}
