//! One database, slot and publication of a test's own, seen by a superuser, by an owner and by the relay's role.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use postrider_postgres::{
    Admin, Error, Init, Inspection, Progress, ROLES_SQL, Reason, Server, SlotStream, Stop, Subject, TableName,
};
use postrider_relay::{
    Backoff, Checked, Effect, Frame, Lsn, MappingSettings, Now, QuarantineScope, Relay, Settings, Unrouted,
    Watermark,
};
use testenv::{Postgres, PostgresOptions, Sql, eventually};
use tokio::sync::OnceCell;

/// Long enough for any step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const RELAY: &str = "postrider_relay";
pub(crate) const RELAY_PASSWORD: &str = "relay-secret";

/// Slots wait for no open transaction here.
pub(crate) const INIT: Init = Init { wait: Duration::from_secs(20), failover: true };

/// The server that tests share that break nothing but their own database.
static SHARED: OnceCell<Postgres> = OnceCell::const_new();

pub(crate) async fn shared() -> Result<&'static Postgres> {
    SHARED.get_or_try_init(|| start(options())).await
}

pub(crate) fn options() -> PostgresOptions {
    PostgresOptions { fsync: false, ..PostgresOptions::default() }
}

/// A server with the relay's role.
pub(crate) async fn start(options: PostgresOptions) -> Result<Postgres> {
    let server = Postgres::start(options).await?;
    let sql = Sql::connect(&socket_url(&server, "postgres", "postgres")).await?;
    sql.batch_execute(&format!("create role {RELAY} login replication password '{RELAY_PASSWORD}'")).await?;
    Ok(server)
}

/// By the Unix socket, where everybody is let in.
pub(crate) fn socket_url(server: &Postgres, user: &str, database: &str) -> String {
    let folder = server.socket_folder().display().to_string().replace('/', "%2F");
    format!("postgres://{user}@{folder}:{}/{database}", server.port())
}

pub(crate) struct Rig {
    pub(crate) server_url: String,
    pub(crate) sql: Sql,
    pub(crate) owner: Admin,
    pub(crate) subject: Subject,
}

impl Rig {
    /// An empty database on the shared server.
    pub(crate) async fn empty(name: &str) -> Result<Rig> {
        Rig::empty_on(shared().await?, name).await
    }

    pub(crate) async fn empty_on(server: &Postgres, name: &str) -> Result<Rig> {
        let admin = Sql::connect(&socket_url(server, "postgres", "postgres")).await?;
        admin.batch_execute(&format!("create database {name}")).await?;
        let owner_url = socket_url(server, "postgres", name);
        Ok(Rig {
            server_url: server.url(RELAY, RELAY_PASSWORD, name),
            sql: Sql::connect(&owner_url).await?,
            owner: Admin::connect(&Server::parse(&owner_url)?).await?,
            subject: Subject::new(name, "postrider", vec![TableName::default_outbox()])?,
        })
    }

    /// The same after `init` and `roles.sql`.
    pub(crate) async fn ready(name: &str) -> Result<Rig> {
        Rig::ready_on(shared().await?, name).await
    }

    pub(crate) async fn ready_on(server: &Postgres, name: &str) -> Result<Rig> {
        let rig = Rig::empty_on(server, name).await?;
        rig.init().await?;
        Ok(rig)
    }

    pub(crate) async fn init(&self) -> Result<(), Error> {
        self.owner.init(&self.subject, INIT, &mut |_: Progress| {}).await?;
        self.grant().await
    }

    /// As an administrator does once; roles belong to the whole server, so that tests must not race.
    pub(crate) async fn grant(&self) -> Result<(), Error> {
        static ROLES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _one_at_a_time = ROLES.lock().await;
        self.sql.batch_execute(ROLES_SQL).await.map_err(|e| Error::Outage(format!("{e:?}")))
    }

    pub(crate) fn server(&self) -> Server {
        Server::parse(&self.server_url).expect("testenv's URL is good")
    }

    /// As the relay's role.
    pub(crate) async fn admin(&self) -> Result<Admin, Error> {
        Admin::connect(&self.server()).await
    }

    /// What `run` does before its first frame.
    pub(crate) async fn run(&self) -> Result<(Admin, SlotStream), Error> {
        let admin = self.admin().await?;
        admin.check(&self.subject, None).await?;
        let stream = SlotStream::connect(&admin, &self.subject, Duration::from_millis(200)).await?;
        Ok((admin, stream))
    }

    pub(crate) async fn insert(&self, aggregate: &str) -> Result<()> {
        self.sql
            .execute(
                "insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('t', $1, 'e')",
                &[&aggregate],
            )
            .await
            .context("insert an event")?;
        Ok(())
    }

    pub(crate) async fn execute(&self, statements: &str) -> Result<()> {
        self.sql.batch_execute(statements).await.with_context(|| format!("execute {statements}"))
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        self.owner.inspect(&self.subject).await
    }

    pub(crate) async fn slot_is_free(&self) -> Result<()> {
        eventually("the slot to be free", LIMIT, async || {
            let slot = self.inspect().await?.slot.context("find the slot")?;
            Ok(slot.active_pid.is_none().then_some(()))
        })
        .await
    }

    /// Runs the lines of a cure as a person would: statements as a superuser, commands as `postrider` does.
    pub(crate) async fn apply(&self, stop: &Stop) -> Result<()> {
        let text = stop.to_string();
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  cure: ")).collect();
        assert!(!lines.is_empty(), "no cure in {text}");
        for line in lines {
            match line {
                "postrider init" => self.init().await?,
                "postrider slot create" => {
                    self.admin().await?.slot_create(&self.subject, INIT, &mut |_: Progress| {}).await?;
                }
                "postrider slot drop --yes" => {
                    self.admin().await?.slot_drop(self.subject.slot()).await?;
                }
                statement => self.execute(statement).await?,
            }
        }
        Ok(())
    }

    /// The relay cannot start for this reason; after the printed cures (a cure may uncover the next stop) it
    /// runs and receives an event.
    pub(crate) async fn stops_and_is_mended(&self, reason: Reason) -> Result<()> {
        let stop = stopped(self.run().await)?;
        assert_eq!(stop.reason, reason, "{stop}");
        self.mend(stop).await
    }

    pub(crate) async fn mend(&self, mut stop: Stop) -> Result<()> {
        for _ in 0..4 {
            self.apply(&stop).await.with_context(|| format!("cure {stop}"))?;
            match self.run().await {
                Ok((_admin, mut stream)) => {
                    self.insert("mended").await?;
                    return receives(&mut stream, "mended").await;
                }
                Err(Error::Stop(next)) => stop = *next,
                Err(e) => bail!("run after the cure: {e}"),
            }
        }
        bail!("still stopped after four cures: {stop}")
    }
}

/// The stop that must have happened.
pub(crate) fn stopped<T>(result: Result<T, Error>) -> Result<Stop> {
    match result {
        Err(Error::Stop(stop)) => Ok(*stop),
        Err(e) => bail!("expected a stop, got: {e}"),
        Ok(_) => bail!("expected a stop, but it went well"),
    }
}

/// Reads on until a change that mentions the text, and its commit.
pub(crate) async fn receives(stream: &mut SlotStream, text: &str) -> Result<()> {
    receive_commit(stream, text).await.map(drop)
}

/// The same, and the end of the commit.
pub(crate) async fn receive_commit(stream: &mut SlotStream, text: &str) -> Result<Lsn> {
    let mut found = false;
    let reading = async {
        loop {
            match stream.next().await? {
                Frame::Change(bytes) => found |= bytes.windows(text.len()).any(|w| w == text.as_bytes()),
                Frame::Commit { end_lsn, .. } if found => return Ok(end_lsn),
                _ => {}
            }
        }
    };
    tokio::time::timeout(LIMIT, reading).await.with_context(|| format!("receive {text}"))?
}

/// A watermark, from the only place that makes one: a relay that owes nothing and hears a keepalive.
pub(crate) fn watermark(lsn: Lsn) -> Watermark {
    let mut relay = Relay::new(Settings {
        mapping: MappingSettings::default(),
        lanes: 1,
        window_events: 1,
        events_per_key: 1,
        in_flight_events: 1,
        in_flight_bytes: 1,
        events_per_second: 0,
        slot: "postrider".to_owned(),
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(1), jitter: 0.0 },
        attempts: 1,
        scope: QuarantineScope::Key,
        unrouted: Unrouted::Key,
        burst_events: 1,
        report_every: Duration::from_secs(1),
        seed: 0,
    });
    let mut now = Now { mono: Duration::ZERO, unix_us: 0 };
    relay.session(now);
    relay
        .ingest(now, Frame::Keepalive { wal_end: lsn, reply_requested: false })
        .expect("a keepalive is in order");
    for _ in 0..10 {
        now.mono += Duration::from_secs(1);
        while let Some(effect) = relay.poll(now) {
            match effect {
                Effect::Check(id) => relay.checked(now, id, Checked::Sound),
                Effect::Report(watermark) => return watermark,
                _ => {}
            }
        }
    }
    panic!("no watermark from a keepalive");
}
