//! The commands besides `run` and `init`, for people and for programs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testenv::Scope;

use crate::run::{Run, expect, expect_clean};
use crate::stage::{BINARY, LIMIT, Stage};

/// One JSON document, and nothing else.
fn document(printed: &str) -> Result<Value> {
    serde_json::from_str(printed).with_context(|| format!("read the document {printed}"))
}

/// The document of our own slot in `slot list --json`.
fn own(list: &Value, name: &str) -> Result<Value> {
    let slots = list.as_array().context("a list is an array")?;
    slots.iter().find(|slot| slot["slot"] == name).cloned().with_context(|| format!("find {name} in {list}"))
}

#[tokio::test]
async fn slots_are_listed_created_moved_and_dropped() -> Result<()> {
    let stage = Stage::new("slot commands").await?;
    let (admin, name) = (&stage.rig.admin, stage.name());
    stage.write_event().await?;
    let (printed, _) = expect(admin, "slot list", 0).await?;
    let mut rows = printed.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let header = rows.next().context("a header")?;
    assert_eq!(header[..4], ["slot", "plugin", "database", "active"]);
    let row = rows.find(|row| row[0] == name).context("our slot")?;
    assert_eq!(row[..5], [name, "pgoutput", name, "no", "reserved"]);
    assert_eq!(row.len(), header.len());

    let (printed, _) = expect(admin, "slot list --json", 0).await?;
    let slot = own(&document(&printed)?, name)?;
    let keys: Vec<&str> = slot.as_object().context("an object")?.keys().map(String::as_str).collect();
    for key in [
        "slot",
        "plugin",
        "database",
        "active_pid",
        "wal_status",
        "confirmed_flush_lsn",
        "restart_lsn",
        "lag_bytes",
        "retained_bytes",
        "safe_bytes",
        "failover",
        "recorded",
    ] {
        assert!(keys.contains(&key), "{slot}");
    }
    assert_eq!((&slot["recorded"], &slot["active_pid"]), (&json!(true), &Value::Null));
    assert!(slot["lag_bytes"].as_i64().is_some_and(|lag| lag > 0), "{slot}");

    // What destroys says what would be lost, and does nothing.
    let stands = slot["confirmed_flush_lsn"].as_str().context("a position")?;
    for (words, verb) in [("slot drop", "dropping"), ("slot advance --to end", "advancing")] {
        let (printed, said) = expect(admin, words, 2).await?;
        assert_eq!(printed, "", "{words}");
        assert!(said.contains(verb) && said.contains(stands) && said.contains("loses every event"), "{said}");
        assert!(said.contains("--yes"), "{said}");
    }
    let (printed, _) = expect(admin, "slot drop --json", 2).await?;
    let dropped = document(&printed)?;
    assert_eq!((&dropped["slot"], &dropped["dropped"]), (&json!(name), &json!(false)));
    assert_eq!(own(&document(&expect(admin, "slot list --json", 0).await?.0)?, name)?["recorded"], true);

    // Moved: to a position, to the end; what lies between is never delivered.
    let middle = stage.text("select pg_current_wal_lsn()::text").await?;
    let lost = stage.write_event().await?;
    let (printed, _) = expect(admin, &format!("slot advance --to {middle} --yes --json"), 0).await?;
    let moved = document(&printed)?;
    assert_eq!(moved["advanced"], true);
    assert_eq!(moved["from_lsn"].as_str(), Some(stands));
    let (printed, _) = expect(admin, "slot advance --to end --yes", 0).await?;
    assert!(printed.starts_with(&format!("slot {name}: advanced from ")), "{printed}");
    let mut relay = stage.ready().await?;
    let id = stage.write_event().await?;
    let first = stage.next_message().await?;
    ensure!(first.message_id() == id && id != lost, "the slot was moved past {lost}: {first:?}");

    // In use: 1, and nothing is done.
    let (_, said) = expect(admin, "slot drop --yes", 1).await?;
    assert!(said.contains("active for another session") && said.contains("pid"), "{said}");
    relay.expect_drain().await?;

    let (printed, _) = expect(admin, "slot drop --yes", 0).await?;
    assert!(printed.starts_with(&format!("slot {name}: dropped, with ")), "{printed}");
    let (_, said) = expect(admin, "slot drop --yes", 1).await?;
    assert!(said.contains("does not exist"), "{said}");
    let (printed, _) = expect(admin, "slot create", 0).await?;
    assert_eq!(
        printed,
        format!("slot {name}: created\nrecord of the slot {name} in postrider.relay: created\n")
    );
    let (printed, _) = expect(admin, "slot create --json", 0).await?;
    assert_eq!(document(&printed)?, json!({ "slot": name, "created": false }));
    let other = stage.rig.scope.named("other");
    let (printed, _) = expect(admin, &format!("slot create {other} --json"), 0).await?;
    assert_eq!(document(&printed)?, json!({ "slot": other, "created": true }));
    let (printed, _) = expect(admin, &format!("slot drop {other} --yes --json"), 0).await?;
    assert_eq!(document(&printed)?["dropped"], true);
    stage.expect_delivery().await
}

#[tokio::test]
async fn status_shows_the_slot_the_relay_and_the_trouble() -> Result<()> {
    let stage = Stage::new("status").await?;
    let (admin, name) = (&stage.rig.admin, stage.name());
    // Without a relay: the slot all the same.
    let (printed, _) = expect(admin, "status", 0).await?;
    assert!(printed.contains(name) && printed.contains("nobody reads it"), "{printed}");
    let mut relay = stage.ready().await?;
    let listen = relay.http_address().await?;
    let program = admin.clone().set("http.listen", listen);
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    relay.wait_metric("postrider_events_published_total", &[], 1.0).await?;
    let (printed, _) = expect(&program, "status", 0).await?;
    for part in [name, "read by pid", "ready", "no limit", "published", "1 events"] {
        assert!(printed.contains(part), "expect {part:?} in {printed}");
    }
    let status = document(&expect(&program, "status --json", 0).await?.0)?;
    assert_eq!(status["slot"]["name"], name);
    assert_eq!(status["relay"]["ready"], true);
    assert_eq!(status["relay"]["events"]["published"], 1);
    assert_eq!((&status["trouble"], &status["postgres_error"]), (&Value::Null, &Value::Null));
    relay.expect_drain().await?;

    stage.execute(&format!("select pg_drop_replication_slot('{name}')")).await?;
    let (printed, _) = expect(&program, "status", 0).await?;
    assert!(printed.contains("does not exist") && printed.contains("postrider slot create"), "{printed}");
    let (printed, _) =
        expect(&program.set("postgres.url", "postgres://a@127.0.0.1:1/b"), "status", 1).await?;
    assert!(printed.contains("127.0.0.1:1"), "{printed}");
    Ok(())
}

#[tokio::test]
async fn doctor_finds_what_would_stop_a_relay() -> Result<()> {
    let stage = Stage::new("doctor").await?;
    let name = stage.name();
    let (printed, _) = expect(&stage.rig.program, "doctor", 0).await?;
    assert!(printed.contains("a relay can run"), "{printed}");
    let findings = document(&expect(&stage.rig.program, "doctor --json", 0).await?.0)?;
    let errors = |findings: &Value| -> Vec<Value> {
        findings
            .as_array()
            .into_iter()
            .flatten()
            .filter(|finding| finding["level"] == "error")
            .cloned()
            .collect()
    };
    assert!(errors(&findings).is_empty() && findings.is_array(), "{findings}");

    stage.execute(&format!("alter publication {name} drop table postrider.outbox")).await?;
    let missing = stage.rig.scope.named("missing");
    let program =
        stage.rig.program.clone().set("rabbitmq.exchange", &missing).set("rabbitmq.declare", "false");
    let (printed, _) = expect(&program, "doctor", 1).await?;
    assert!(printed.contains("no relay can run safely"), "{printed}");
    let errors = errors(&document(&expect(&program, "doctor --json", 1).await?.0)?);
    let of = |side: &str| errors.iter().find(|finding| finding["side"] == side).cloned().unwrap_or_default();
    let cure = format!("alter publication {name} add table postrider.outbox");
    assert_eq!(of("postgres")["cure"], json!([cure]), "{errors:?}");
    assert!(of("broker").to_string().contains(&missing), "{errors:?}");
    stage.carry_out(&cure).await?;

    stage.execute("revoke insert on postrider.quarantine from postrider_relay").await?;
    let (printed, _) = expect(&stage.rig.program, "doctor", 1).await?;
    let cure = "grant select, insert, update on postrider.quarantine to postrider_relay";
    assert!(printed.contains(&format!("  cure: {cure}\n")), "{printed}");
    stage.carry_out(cure).await?;
    expect(&stage.rig.program, "doctor", 0).await.map(drop)
}

#[tokio::test]
async fn doctor_and_the_relay_agree_with_nothing_in_place() -> Result<()> {
    let stage = Stage::bare(Scope::shared("doctor nothing").await?).await?;
    let (printed, _) = expect(&stage.rig.admin, "doctor", 1).await?;
    assert!(printed.contains("  cure: postrider init"), "{printed}");
    expect(&stage.rig.admin, "init", 0).await?;
    expect(&stage.rig.admin, "doctor", 0).await?;
    Ok(())
}

#[tokio::test]
async fn the_configuration_is_shown_without_secrets() -> Result<()> {
    let stage = Stage::new("config").await?;
    let (printed, _) = expect(&stage.rig.program, "config", 0).await?;
    expect_clean(&printed);
    assert!(printed.contains("postgres://postrider_relay:***@127.0.0.1"), "{printed}");
    assert!(printed.contains("amqp://guest:***@127.0.0.1") && printed.contains(stage.name()), "{printed}");
    // A file with the password does as well as one in the URL.
    let file = std::env::temp_dir().join(stage.rig.scope.named("password"));
    std::fs::write(&file, "relay-secret\n").context("write the password")?;
    let url = stage.rig.relay_url().replace(":relay-secret@", "@");
    let program = stage.rig.program.clone().set("postgres.url", url).set("postgres.password_file", &file);
    let mut relay = Run::start(&program)?;
    relay.wait_ready(LIMIT).await?;
    relay.expect_drain().await?;
    let (printed, _) = expect(&program, "config", 0).await?;
    assert!(printed.contains(Path::new(&file).to_str().context("UTF-8")?), "{printed}");
    std::fs::remove_file(&file).context("remove the password")
}

#[tokio::test]
async fn wrong_words_and_a_taken_port_end_with_2() -> Result<()> {
    let stage = Stage::new("usage").await?;
    let mut relay = stage.ready().await?;
    let listen = relay.http_address().await?;
    let mut second = Run::start(&stage.rig.program.clone().set("http.listen", &listen))?;
    let log = second.expect_end(2).await?;
    assert!(log.contains(&listen) && log.contains("choose another port"), "{log}");
    let mut third = Run::start(&stage.rig.program.clone().env("POSTRIDER_RABBITMQ_EXCHNAGE", "x"))?;
    let log = third.expect_end(2).await?;
    assert!(log.contains("did you mean rabbitmq.exchange?"), "{log}");
    // Neither has touched the slot.
    let id = stage.write_event().await?;
    stage.wait_message(&id).await?;
    assert_eq!(relay.count_lines("lost Postgres"), 0, "{}", relay.log_text());
    relay.expect_drain().await?;
    let built = Command::new(BINARY).arg("--version").output().context("ask for the version")?;
    ensure!(built.status.success() && built.stdout.starts_with(b"postrider "));
    Ok(())
}
