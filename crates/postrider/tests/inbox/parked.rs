//! `postrider parked`: what a consumer has parked is looked at without harm, and goes back with its own id.

use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postrider_inbox::consumer::{Consumer, Event, Handle, HandleError, Retry, Settings, Tally, Urls};
use postrider_inbox::{INBOX_SQL, Inbox};
use serde_json::Value as Json;
use testenv::consumer::{Parcel, Properties, Queue, QueueKind, Value, publish};
use testenv::relay::{Output, Program};
use testenv::{Direction, Link, Protocol, Scope, Sql, eventually};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_postgres::Transaction;

use crate::BINARY;

/// Generous: never measured, only there so that a test that hangs ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Cannot do its work until it is mended; keeps what it sees.
#[derive(Clone, Default)]
struct Work {
    mended: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Event>>>,
}

impl Handle for Work {
    async fn handle(&self, event: &Event, transaction: &Transaction<'_>) -> Result<(), HandleError> {
        self.seen.lock().expect("no holder panics").push(event.clone());
        if !self.mended.load(SeqCst) {
            return Err(HandleError::transient("no paper"));
        }
        transaction.execute("insert into handled values ($1)", &[&event.message_id]).await?;
        Ok(())
    }
}

/// A queue, its parking queue, a consumer with an inbox, and the operator's program.
struct Station {
    scope: Scope,
    sql: Sql,
    queue: Queue,
    parking: Queue,
    work: Work,
    tally: Arc<Tally>,
    stop: oneshot::Sender<()>,
    tasks: JoinSet<()>,
    program: Program,
}

impl Station {
    async fn new(test: &str, kind: QueueKind) -> Result<Self> {
        let scope = Scope::shared(test).await?;
        let sql = scope.connect().await?;
        sql.batch_execute(INBOX_SQL).await.context("install the inbox")?;
        sql.batch_execute("create table handled (id text)").await?;
        let url = scope.amqp_url();
        let queue = Queue::declare(&url, &scope.named("q"), QueueKind::Classic, &[]).await?;
        let parking = Queue::declare(&url, &scope.named("p"), kind, &[]).await?;
        let settings = Settings {
            parking_key: parking.name().to_owned(),
            attempts: 2,
            retry: Retry { first: Duration::from_millis(1), max: Duration::from_millis(10), jitter: 0.2 },
            ..Settings::new(queue.name())
        };
        let urls = Urls { broker: url.clone(), database: scope.admin_url() };
        let work = Work::default();
        let consumer = Consumer::new(settings, Inbox::new("worker"), urls, work.clone());
        let (tally, mut tasks) = (consumer.tally(), JoinSet::new());
        let (stop, stopped) = oneshot::channel();
        tasks.spawn(consumer.run(async move { drop(stopped.await) }));
        let program = Program::new(BINARY).set("postgres.url", scope.admin_url()).set("rabbitmq.url", url);
        Ok(Self { scope, sql, queue, parking, work, tally, stop, tasks, program })
    }

    /// Sends messages of these ids and waits until they are parked.
    async fn park(&self, ids: &[&str]) -> Result<()> {
        let before = self.tally.counts().parked;
        publish(self.queue.url(), "", self.queue.name(), ids.iter().map(|id| parcel(id)).collect()).await?;
        self.wait("the messages to be parked", || {
            self.tally.counts().parked == before + u64::try_from(ids.len()).expect("few")
        })
        .await
    }

    async fn wait(&self, what: &str, there: impl Fn() -> bool) -> Result<()> {
        eventually(what, LIMIT, async || Ok(there().then_some(()))).await
    }

    /// Says `postrider parked <verb> --queue <the parking queue> <words>`.
    async fn call(&self, line: &str, code: i32) -> Result<Output> {
        let (verb, words) = line.split_once(' ').unwrap_or((line, ""));
        let mut all = vec!["parked", verb, "--queue", self.parking.name()];
        all.extend(words.split_whitespace());
        let output = self.program.output(&all).await?;
        ensure!(output.code == Some(code), "{line}: {output}");
        Ok(output)
    }

    /// The ids in the parking queue, as the program lists them.
    async fn listed(&self) -> Result<Vec<String>> {
        let listed: Vec<Json> =
            serde_json::from_str(&self.call("list --json --limit 1000", 0).await?.stdout)?;
        Ok(listed.iter().map(|row| row["message_id"].as_str().unwrap_or("-").to_owned()).collect())
    }

    /// The ids that were handled, in order.
    async fn handled(&self) -> Result<Vec<String>> {
        let rows = self.sql.query("select id from handled order by id", &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn wait_handled(&self, ids: &[&str]) -> Result<()> {
        let mut last = Vec::new();
        let waited = eventually("the messages to be handled", LIMIT, async || {
            last = self.handled().await?;
            Ok((last.len() >= ids.len()).then_some(()))
        });
        waited.await.with_context(|| format!("{last:?}"))?;
        ensure!(last == ids, "{last:?}");
        Ok(())
    }

    /// Stops the consumer; nothing may be left in its queue.
    async fn end(self) -> Result<()> {
        eventually("the queue to be empty", LIMIT, async || {
            Ok((self.queue.depth().await? == 0).then_some(()))
        })
        .await?;
        let _ = self.stop.send(());
        self.tasks.join_all().await;
        ensure!(self.queue.left().await? == 0);
        Ok(())
    }
}

fn parcel(id: &str) -> Parcel {
    Parcel {
        properties: Properties {
            content_type: Some("application/json".to_owned()),
            content_encoding: Some("none".to_owned()),
            delivery_mode: Some(2),
            priority: Some(3),
            correlation_id: Some("c".to_owned()),
            reply_to: Some("r".to_owned()),
            message_id: Some(id.to_owned()),
            timestamp: Some(1_764_475_200),
            message_type: Some("placed".to_owned()),
            app_id: Some("shop".to_owned()),
            ..Properties::default()
        },
        headers: vec![
            ("aggregate_seq".to_owned(), Value::Long(7)),
            ("traceparent".to_owned(), Value::Text("00-é".to_owned())),
            ("urgent".to_owned(), Value::Bool(true)),
        ],
        body: [id.as_bytes(), &[0, 0xFF]].concat(),
    }
}

#[tokio::test]
async fn a_parked_message_goes_back_as_it_was_and_is_handled_once() -> Result<()> {
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let station = Station::new("parked back", kind).await?;
        station.park(&["E-1"]).await?;
        station.park(&["E-2"]).await?;
        station.park(&["E-3"]).await?;
        for _ in 0..2 {
            ensure!(station.listed().await? == ["E-1", "E-2", "E-3"]);
        }
        let listed = station.call("list --id E-2", 0).await?.stdout;
        let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
        ensure!(rows.len() == 2 && rows[1][..4] == ["E-2", "placed", "exhausted", "2"], "{listed}");
        ensure!(rows[1][5] == station.queue.name() && rows[1][8] == "no paper", "{listed}");
        let shown = station.call("show --id E-2 --payload --json", 0).await?.stdout;
        let shown: Json = serde_json::from_str(&shown)?;
        let own = serde_json::json!({"aggregate_seq": 7, "traceparent": "00-é", "urgent": true});
        ensure!(shown[0]["headers"] == own && shown[0]["payload"] == "452d3200ff", "{shown}");
        ensure!(shown[0]["routing_key"] == station.queue.name() && shown[0]["exchange"] == "", "{shown}");
        let page = station.call("show --id E-2", 0).await?.stdout;
        ensure!(page.contains("first failure 2") && !page.contains("452d32"), "{page}");

        // Its inbox counts on: another failure would park it at once.
        station.work.mended.store(true, SeqCst);
        let refused = station.call("retry --id E-2", 1).await?;
        let cure = "`postrider inbox retry --consumer=worker --id=E-2`";
        ensure!(refused.stderr.contains("E-2 stays parked") && refused.stderr.contains(cure), "{refused}");
        let retry = ["inbox", "retry", "--consumer", "worker", "--id", "E-2"];
        station.program.expect(&retry).await?;
        let sent = station.call("retry --id E-2", 0).await?.stdout;
        ensure!(sent == format!("sent E-2 to queue {:?}\n", station.queue.name()), "{sent}");
        station.wait_handled(&["E-2"]).await?;
        ensure!(station.listed().await? == ["E-1", "E-3"]);

        let sent = station.call("retry --all --consumer worker --json", 0).await?.stdout;
        let sent: Json = serde_json::from_str(&sent)?;
        ensure!(sent[1]["message_id"] == "E-3" && sent[1]["became"] == "sent", "{sent}");
        station.wait_handled(&["E-1", "E-2", "E-3"]).await?;
        ensure!(station.parking.left().await? == 0 && station.listed().await?.is_empty());
        let none = station.call("retry --all --consumer worker", 1).await?;
        ensure!(none.stderr.contains("find such a message"), "{none}");
        {
            let seen = station.work.seen.lock().expect("no holder panics");
            for id in ["E-1", "E-2", "E-3"] {
                let of_it: Vec<&Event> = seen.iter().filter(|event| event.message_id == id).collect();
                ensure!(of_it.len() == 3 && of_it[0].body == of_it[2].body, "{of_it:?}");
                ensure!(of_it[0].properties == of_it[2].properties, "{of_it:?}");
            }
        }
        station.end().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_go_back_stays_parked() -> Result<()> {
    let station = Station::new("parked stays", QueueKind::Quorum).await?;
    let lost = Parcel {
        headers: vec![
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

    // An id that no inbox can hold concerns its own message only; and a mistyped consumer is not one without rows.
    let way = || vec![("inbox_parked_queue".to_owned(), Value::Text(station.queue.name().to_owned()))];
    let parcels = ["E\0", "E-2"].map(|id| Parcel { headers: way(), ..parcel(id) });
    publish(station.parking.url(), "", station.parking.name(), parcels.to_vec()).await?;
    let mistyped = station.call("retry --all --consumer nobody", 1).await?;
    ensure!(mistyped.stderr.contains("it has rows of worker; nothing was sent"), "{mistyped}");
    let nul = station.call("retry --all", 1).await?;
    ensure!(nul.stderr.contains("stays parked: its id has a NUL"), "{nul}");
    ensure!(nul.stdout.starts_with("sent E-2 to queue"), "{nul}");
    station.wait_handled(&["E-1", "E-2"]).await?;
    let missing = station.program.output(&["parked", "list", "--queue", "no_such_queue"]).await?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("404"), "{missing}");
    station.end().await
}

#[tokio::test]
async fn many_looks_change_no_order_and_are_counted_by_a_quorum_queue() -> Result<()> {
    let station = Station::new("parked looks", QueueKind::Quorum).await?;
    let ids: Vec<String> = (0..40).map(|number| format!("E-{number}")).collect();
    let parcels = ids.iter().map(|id| parcel(id)).collect();
    publish(station.parking.url(), "", station.parking.name(), parcels).await?;
    for _ in 0..10 {
        let some = station.call("list --limit 15", 0).await?;
        ensure!(some.stdout.lines().count() == 16, "{some}");
        ensure!(some.stderr.contains("the first 15 of 40 messages"), "{some}");
        ensure!(!some.stderr.contains("x-delivery-limit"), "{some}");
    }
    let warned = station.call("list --limit 15", 0).await?;
    ensure!(warned.stderr.contains("handed a message out 10 times"), "{warned}");
    ensure!(station.listed().await? == ids);
    // Of what is taken from the middle, the others keep their places.
    station.call("discard --id E-7 --id E-20 --yes", 0).await?;
    let left: Vec<String> = ids.into_iter().filter(|id| id != "E-7" && id != "E-20").collect();
    ensure!(station.listed().await? == left);
    station.end().await
}

#[tokio::test]
async fn killed_between_confirm_and_acknowledgement_it_is_still_parked_and_handled_once() -> Result<()> {
    let station = Station::new("parked killed", QueueKind::Quorum).await?;
    station.park(&["E-1"]).await?;
    station.work.mended.store(true, SeqCst);

    let link = Link::start(station.scope.addresses().rabbitmq_port, Protocol::Amqp)?;
    let victim: Arc<OnceLock<Pid>> = Arc::default();
    let theirs = Arc::clone(&victim);
    // It is sent when the confirm is in.
    let cut = link.cut_inside_frame(Direction::ToServer, move |frame| {
        let ack = frame.is_method(60, 80);
        if ack && let Some(pid) = theirs.get() {
            kill(*pid, Signal::SIGKILL).expect("the program runs");
        }
        ack
    });
    let mut command = tokio::process::Command::new(BINARY);
    command.env("POSTRIDER_POSTGRES_URL", station.scope.admin_url());
    command.env("POSTRIDER_RABBITMQ_URL", link.through(&station.scope.amqp_url()));
    command.args(["parked", "retry", "--queue", station.parking.name(), "--all", "--consumer", "worker"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()?;
    let pid = child.id().context("it runs")?;
    victim.set(Pid::from_raw(pid.cast_signed())).expect("it is set once");
    cut.fired(LIMIT).await?;
    let status = child.wait().await?;
    ensure!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(9), "{status}");

    station.wait_handled(&["E-1"]).await?;
    ensure!(station.parking.left().await? == 1 && station.listed().await? == ["E-1"]);
    let sent = station.call("retry --all", 0).await?;
    ensure!(sent.stdout.starts_with("sent E-1 "), "{sent}");
    station.wait("the second copy to be a duplicate", || station.tally.counts().duplicates == 1).await?;
    ensure!(station.parking.left().await? == 0 && station.handled().await? == ["E-1"]);
    station.end().await
}
