//! What cannot go back stays parked, with the reason said; the others go.

use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Result, ensure};
use postrider_inbox::INBOX_SQL;
use serde_json::Value as Json;
use testenv::Sql;
use testenv::consumer::{Parcel, QueueKind, Value, publish};
use testenv::relay::Program;

use crate::BINARY;
use crate::station::{Station, parcel};

/// A message that another program has parked: no inbox knows it.
fn parked(station: &Station, id: &str) -> Parcel {
    let queue = Value::Text(station.queue.name().to_owned());
    Parcel { headers: vec![("inbox_parked_queue".to_owned(), queue)], ..parcel(id) }
}

#[tokio::test]
async fn what_cannot_go_back_stays_parked() -> Result<()> {
    let station = Station::new("parked stays", QueueKind::Quorum).await?;
    let lost = Parcel {
        headers: vec![
            ("inbox_parked_reason".to_owned(), Value::Text("poison".to_owned())),
            ("inbox_parked_exchange".to_owned(), Value::Text(station.scope.named("nowhere"))),
            ("inbox_parked_routing_key".to_owned(), Value::Text("k".to_owned())),
        ],
        ..parcel("E-0")
    };
    publish(station.parking.url(), "", station.parking.name(), vec![lost]).await?;
    station.park(&["E-1"]).await?;

    let unrouted = station.call("retry --id E-1 --consumer worker --to-queue no_such_queue", 1).await?;
    let why = "E-1 stays parked: failed to send it to queue \"no_such_queue\": no queue took it";
    ensure!(unrouted.stderr.contains(why) && unrouted.stdout.is_empty(), "{unrouted}");
    ensure!(station.listed().await? == ["E-0", "E-1"]);
    let unknown = station.call("retry --id E-0", 1).await?;
    ensure!(unknown.stderr.contains("say --to-queue"), "{unknown}");

    // The broker closes the channel over the first one; the second one goes back.
    station.work.mended.store(true, SeqCst);
    let closed = station.call("retry --all --by-exchange --consumer worker", 1).await?;
    let why = format!("exchange {:?} with routing key \"k\": 404", station.scope.named("nowhere"));
    ensure!(
        closed.stderr.contains(&why) && closed.stdout.starts_with("sent E-1 to exchange \"\""),
        "{closed}"
    );
    station.wait_handled(&["E-1"]).await?;
    ensure!(station.listed().await? == ["E-0"]);

    let unsure = station.call("discard --all", 2).await?;
    ensure!(unsure.stderr.contains("loses 1 parked messages (5 B)"), "{unsure}");
    let other = station.call("discard --id E-1 --yes", 1).await?;
    ensure!(other.stderr.contains("find such a message"), "{other}");
    ensure!(station.listed().await? == ["E-0"]);
    let gone = station.call("discard --id E-0 --yes", 0).await?.stdout;
    ensure!(gone == "discarded E-0\n" && station.listed().await?.is_empty(), "{gone}");

    // An id that no inbox can hold concerns its own message only.
    let parcels = ["E\0", "E-2"].map(|id| parked(&station, id));
    publish(station.parking.url(), "", station.parking.name(), parcels.to_vec()).await?;
    let nul = station.call("retry --all", 1).await?;
    ensure!(nul.stderr.contains("stays parked: its id has a NUL"), "{nul}");
    ensure!(nul.stdout.starts_with("sent E-2 to queue"), "{nul}");
    station.wait_handled(&["E-1", "E-2"]).await?;
    let missing = station.program.output(&["parked", "list", "--queue", "no_such_queue"]).await?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("404"), "{missing}");
    station.end().await
}

/// One that an inbox has parked, without what an inbox tells it by.
fn nameless(station: &Station) -> Parcel {
    let mut parcel = parked(station, "");
    parcel.properties.message_id = None;
    parcel.headers.push(("inbox_parked_reason".to_owned(), Value::Text("poison".to_owned())));
    parcel
}

#[tokio::test]
async fn what_has_no_id_stays_parked() -> Result<()> {
    let mut station = Station::new("parked nameless", QueueKind::Classic).await?;
    station.work.mended.store(true, SeqCst);
    let parcels = vec![nameless(&station), parked(&station, ""), parked(&station, "E-1")];
    publish(station.parking.url(), "", station.parking.name(), parcels).await?;
    let some = station.call("retry --all --consumer worker", 1).await?;
    ensure!(some.stderr.matches("stays parked: it has no id").count() == 2, "{some}");
    ensure!(some.stdout == format!("sent E-1 to queue {:?}\n", station.queue.name()), "{some}");
    station.wait_handled(&["E-1"]).await?;
    ensure!(station.listed().await? == ["-", ""]);

    // Without an inbox to ask, the mark says that one has parked it.
    station.program = Program::new(BINARY).set("rabbitmq.url", station.scope.amqp_url());
    station.call("discard --all --unmarked --yes", 0).await?;
    publish(station.parking.url(), "", station.parking.name(), vec![nameless(&station)]).await?;
    let none = station.call("retry --all", 1).await?;
    ensure!(none.stderr.contains("- stays parked: it has no id") && none.stdout.is_empty(), "{none}");
    ensure!(station.listed().await? == ["-"]);
    station.end().await
}

#[tokio::test]
async fn a_database_without_an_inbox_may_be_the_wrong_one() -> Result<()> {
    let mut station = Station::new("parked elsewhere", QueueKind::Classic).await?;
    station.park(&["E-1"]).await?;
    let shop = station.scope.named("shop");
    station.sql.batch_execute(&format!("create database {shop}")).await?;
    station.program = station.program.set("postgres.url", station.scope.addresses().admin_url(&shop));
    let refused = station.call("retry --all --consumer worker", 1).await?;
    for part in ["set postgres.url to the consumer's database", "`postrider init --inbox`"] {
        ensure!(refused.stderr.contains(part), "{refused}");
    }
    ensure!(station.listed().await? == ["E-1"]);
    station.end().await
}

#[tokio::test]
async fn for_a_consumer_without_rows_only_what_others_have_stays_parked() -> Result<()> {
    let station = Station::new("parked stranger", QueueKind::Classic).await?;
    station.park(&["E-1"]).await?;
    publish(station.parking.url(), "", station.parking.name(), vec![parked(&station, "E-2")]).await?;
    station.work.mended.store(true, SeqCst);
    let mistyped = station.call("retry --all --consumer wroker", 1).await?;
    let why = "E-1 stays parked: the inbox has no row of consumer wroker, but of this message rows of worker";
    ensure!(mistyped.stderr.contains(why), "{mistyped}");
    ensure!(mistyped.stdout.starts_with("sent E-2 to queue"), "{mistyped}");
    station.wait_handled(&["E-2"]).await?;
    ensure!(station.listed().await? == ["E-1"]);
    station.end().await
}

#[tokio::test]
async fn an_id_that_the_database_cannot_take_concerns_its_own_message_only() -> Result<()> {
    let mut station = Station::new("parked latin", QueueKind::Classic).await?;
    let latin = station.scope.named("latin");
    let create =
        format!("create database {latin} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0");
    station.sql.batch_execute(&create).await?;
    let url = station.scope.addresses().admin_url(&latin);
    Sql::connect(&url).await?.batch_execute(INBOX_SQL).await?;
    station.program = station.program.set("postgres.url", url);

    let parcels = ["E-1", "E-\u{65e5}", "E-3"].map(|id| parked(&station, id));
    publish(station.parking.url(), "", station.parking.name(), parcels.to_vec()).await?;
    station.work.mended.store(true, SeqCst);
    for words in ["retry --all", "retry --all --consumer worker"] {
        let some = station.call(words, 1).await?;
        ensure!(some.stderr.contains("E-\u{65e5} stays parked: failed to look into the inbox"), "{some}");
        ensure!(some.stderr.contains("22P05") && some.stderr.contains("cannot take its id"), "{some}");
        station.wait_handled(&["E-1", "E-3"]).await?;
        ensure!(station.listed().await? == ["E-\u{65e5}"]);
    }
    station.end().await
}

#[tokio::test]
async fn the_command_that_is_named_works_in_a_shell() -> Result<()> {
    let station = Station::new("parked shell", QueueKind::Classic).await?;
    let ids = ["-E", "E'\t1\\", "it's \u{9b}é\u{202e}"];
    station.park(&ids).await?;
    station.work.mended.store(true, SeqCst);
    let refused = station.call("retry --all", 1).await?;
    let cures: Vec<&str> = refused.stderr.split('`').skip(1).step_by(2).collect();
    ensure!(cures.len() == ids.len() && refused.stderr.contains("--id=-E`"), "{refused}");
    let listed = station.call("list", 0).await?.stdout;
    let unseen = |c: char| c.is_control() && !"\t\n".contains(c) || c == '\u{202e}';
    ensure!(!refused.stderr.contains(unseen) && !listed.contains(unseen), "{refused}{listed}");
    for cure in cures {
        let mut shell = tokio::process::Command::new("bash");
        shell.env("POSTRIDER_POSTGRES_URL", station.scope.admin_url());
        let done =
            shell.args(["-c", &format!("postrider() {{ '{BINARY}' \"$@\"; }}; {cure}")]).output().await?;
        ensure!(done.status.success(), "{cure}: {done:?}");
    }
    station.call("retry --all", 0).await?;
    station.wait_handled(&ids).await?;
    station.end().await
}

#[tokio::test]
async fn a_mistyped_queue_loses_nothing() -> Result<()> {
    let station = Station::new("parked mistyped", QueueKind::Quorum).await?;
    let mark = ("inbox_parked_reason".to_owned(), Value::Text("poison".to_owned()));
    let marked = Parcel { headers: vec![mark], ..parcel("E-2") };
    let parcels = vec![parcel("E-1"), marked, parcel("E-3")];
    publish(station.parking.url(), "", station.parking.name(), parcels).await?;
    let unsure = station.call("discard --all", 2).await?;
    for part in ["loses 1 parked messages (5 B)", "does not touch 2 messages (10 B)", "--unmarked and --yes"]
    {
        ensure!(unsure.stderr.contains(part), "{unsure}");
    }
    let some = station.call("discard --all --yes", 1).await?;
    ensure!(some.stdout == "discarded E-2\n", "{some}");
    for part in ["E-1 stays in the queue", "E-3 stays in the queue", "is a parking queue", "--unmarked"] {
        ensure!(some.stderr.contains(part), "{some}");
    }
    let named = station.call("discard --id E-1 --yes --json", 1).await?.stdout;
    let named: Json = serde_json::from_str(&named)?;
    ensure!(named[0]["message_id"] == "E-1" && named[0]["became"] == "left", "{named}");
    ensure!(station.listed().await? == ["E-1", "E-3"]);
    // Other programs park, too.
    let unsure = station.call("discard --all --unmarked", 2).await?;
    ensure!(unsure.stderr.contains("discarding loses 2 messages (10 B) that have no header"), "{unsure}");
    ensure!(station.listed().await? == ["E-1", "E-3"]);
    station.call("discard --all --unmarked --yes", 0).await?;
    ensure!(station.listed().await?.is_empty());
    station.end().await
}
