//! What `postrider init` makes: schema, tables, publication, then slot, and the slot's record.
//!
//! It creates what is missing and changes nothing that is there. The publication comes before the slot:
//! a slot can read nothing that was written before its publication.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::admin::{Admin, LOOK_LIMIT};
use crate::error::{Error, Reason, Stop};
use crate::failure::Doing;
use crate::record;
use crate::schema;
use crate::subject::{Subject, TableName, literal, quoted};

/// How to create a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// How long to wait for transactions that are open.
    pub wait: Duration,
    /// PostgreSQL 17 and later: keep the slot up on standbys.
    pub failover: bool,
}

/// What is told on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// An object is in place.
    Object {
        /// What it is, such as `table postrider.outbox`.
        object: String,
        /// It was missing.
        created: bool,
    },
    /// Creating the slot waits for these transactions; told about once a second.
    Waiting {
        /// For how long.
        waited: Duration,
        /// Who holds them.
        blockers: Vec<Blocker>,
    },
}

/// A transaction that the creation of a slot waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its process; 0 for a prepared transaction.
    pub pid: i32,
    /// Its role, where we may see it.
    pub user: Option<String>,
    /// Its `application_name`, where we may see it.
    pub application: Option<String>,
    /// How long it has been open, where we may see it.
    pub open_for: Option<Duration>,
}

/// One object of `init`, and the statement that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What it is, such as `publication postrider`.
    pub object: String,
    /// It is there.
    pub present: bool,
    /// The statement, without a semicolon.
    pub sql: String,
}

impl Admin {
    /// Every object in order, for `--dry-run`.
    pub async fn init_plan(&self, subject: &Subject, options: Init) -> Result<Vec<Planned>, Error> {
        let mut plan = self.tables(subject).await?;
        plan.push(self.publication(subject).await?);
        let seen = self.inspect(subject).await?;
        plan.push(Planned {
            object: format!("slot {}", subject.slot()),
            present: seen.slot.is_some(),
            sql: self.create_slot_sql(subject, options),
        });
        plan.push(Planned {
            object: record_of(subject),
            present: seen.slot.is_some() && seen.record.is_some(),
            sql: record::WRITE
                .replace("$1::text", &literal(subject.slot()))
                .replace("$2::text", &literal(subject.publication()))
                .trim()
                .to_owned(),
        });
        Ok(plan)
    }

    /// Creates what is missing, then checks everything as [`Admin::check`] does.
    pub async fn init(
        &self,
        subject: &Subject,
        options: Init,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
        for planned in self.tables(subject).await? {
            self.make(planned, tell).await?;
        }
        // Tables of the user's own are the user's to create.
        self.inspect(subject).await?.tables_are_there(subject)?;
        self.make(self.publication(subject).await?, tell).await?;
        self.make_slot(subject, options, tell).await
    }

    async fn make(&self, planned: Planned, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<(), Error> {
        if !planned.present {
            self.batch(&format!("create the {}", planned.object), Doing::Create, &planned.sql).await?;
        }
        tell(Progress::Object { object: planned.object, created: !planned.present });
        Ok(())
    }

    /// Creates the slot if it is missing, records it if it is not recorded, and checks the whole.
    pub(crate) async fn make_slot(
        &self,
        subject: &Subject,
        options: Init,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
        let verdict = self.inspect(subject).await?.verdict(subject);
        let (made, recorded) = match verdict.as_ref().map_err(|stop| stop.reason) {
            Ok(()) => (false, false),
            Err(Reason::SlotUnrecorded) => (false, true),
            Err(Reason::NoSlot) => (true, true),
            Err(_) => return verdict.map_err(Error::from),
        };
        if made {
            self.create_slot(subject, options, tell).await?;
        }
        tell(Progress::Object { object: format!("slot {}", subject.slot()), created: made });
        if recorded {
            let names = [subject.slot(), subject.publication()];
            self.query("record the slot", Doing::Relay, record::WRITE, &names).await?;
        }
        tell(Progress::Object { object: record_of(subject), created: recorded });
        self.check(subject, None).await.map(drop)
    }

    /// The schema and the tables in it.
    async fn tables(&self, subject: &Subject) -> Result<Vec<Planned>, Error> {
        let outbox = TableName::default_outbox();
        let mut tables = vec![TableName::ours("command"), TableName::ours("relay")];
        if subject.tables().contains(&outbox) {
            tables.insert(0, outbox);
        }
        let mut plan = vec![Planned {
            object: "schema postrider".to_owned(),
            present: self.exists("select from pg_namespace where nspname = $1", "postrider").await?,
            sql: schema::create_schema().to_owned(),
        }];
        for table in tables {
            plan.push(Planned {
                present: self.exists("select where to_regclass($1) is not null", &table.to_string()).await?,
                sql: schema::create_table(&table.table).to_owned(),
                object: format!("table {table}"),
            });
        }
        Ok(plan)
    }

    async fn publication(&self, subject: &Subject) -> Result<Planned, Error> {
        let publication = subject.publication();
        let covered: Vec<String> = subject.tables().iter().map(TableName::to_string).collect();
        Ok(Planned {
            object: format!("publication {}", quoted(publication)),
            present: self.exists("select from pg_publication where pubname = $1", publication).await?,
            sql: format!(
                "create publication {} for table {}, {}\n  with (publish = 'insert', \
                 publish_via_partition_root = true)",
                quoted(publication),
                covered.join(", "),
                TableName::ours("command"),
            ),
        })
    }

    async fn exists(&self, statement: &str, name: &str) -> Result<bool, Error> {
        Ok(!self.query("look what is there", Doing::Relay, statement, &[name]).await?.is_empty())
    }

    fn create_slot_sql(&self, subject: &Subject, options: Init) -> String {
        // The two arguments between are: not temporary, no two-phase commit.
        let failover = if self.version() >= 17 && options.failover { ", true" } else { "" };
        format!(
            "select pg_create_logical_replication_slot({}, 'pgoutput', false, false{failover})",
            literal(subject.slot())
        )
    }

    /// Creates the slot on a connection of its own, which waits for every open transaction to end; says
    /// whom it waits for; gives up after `options.wait` and leaves nothing behind.
    async fn create_slot(
        &self,
        subject: &Subject,
        options: Init,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
        let creator = self.twin().await?;
        let pid = creator.backend_pid().await?;
        let statement = self.create_slot_sql(subject, options);
        let creation = creator.within(
            "create the slot",
            Doing::Replicate,
            options.wait + LOOK_LIMIT,
            creator.0.client.batch_execute(&statement),
        );
        tokio::pin!(creation);
        let started = Instant::now();
        let mut blockers = Vec::new();
        loop {
            // Created wins over waited too long.
            tokio::select! {
                biased;
                created = &mut creation => return created,
                () = sleep(Duration::from_secs(1).min(options.wait.saturating_sub(started.elapsed()))) => {}
            }
            let found = self.blockers(pid).await?;
            if !found.is_empty() {
                blockers = found;
            }
            let waited = started.elapsed();
            if waited >= options.wait {
                break;
            }
            tell(Progress::Waiting { waited, blockers: blockers.clone() });
        }
        self.query(
            "cancel the creation",
            Doing::Replicate,
            "select pg_cancel_backend($1::text::integer)",
            &[&pid.to_string()],
        )
        .await?;
        match timeout(LOOK_LIMIT, creation).await {
            // It came through in the last moment: then it is there, whole.
            Ok(Ok(())) => Ok(()),
            Ok(Err(Error::Outage(_))) | Err(_) => Err(gave_up(subject, options, &blockers).into()),
            Ok(Err(stop)) => Err(stop),
        }
    }

    async fn blockers(&self, pid: i32) -> Result<Vec<Blocker>, Error> {
        let statement = "
            select b.pid, a.usename::text, nullif(a.application_name, ''),
              extract(epoch from now() - a.xact_start)::double precision
            from unnest(pg_blocking_pids($1::text::integer)) as b(pid)
            left join pg_stat_activity a on a.pid = b.pid
            order by b.pid";
        let rows = self
            .query("look for open transactions", Doing::Replicate, statement, &[&pid.to_string()])
            .await?;
        Ok(rows
            .iter()
            .map(|row| Blocker {
                pid: row.get(0),
                user: row.get(1),
                application: row.get(2),
                open_for: row.get::<_, Option<f64>>(3).map(|s| Duration::from_secs_f64(s.max(0.0))),
            })
            .collect())
    }

    async fn backend_pid(&self) -> Result<i32, Error> {
        let rows = self.query("ask for our pid", Doing::Replicate, "select pg_backend_pid()", &[]).await?;
        rows.first()
            .map(|row| row.get(0))
            .ok_or_else(|| Error::Outage("ask for our pid: no answer".to_owned()))
    }
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pid == 0 {
            return f.write_str("a prepared transaction (see pg_prepared_xacts)");
        }
        write!(f, "pid {}", self.pid)?;
        let words = [
            self.user.as_ref().map(|user| format!("role {user}")),
            self.application.clone(),
            self.open_for.map(|open| format!("open for {} s", open.as_secs())),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        if words.is_empty() { Ok(()) } else { write!(f, " ({})", words.join(", ")) }
    }
}

fn gave_up(subject: &Subject, options: Init, blockers: &[Blocker]) -> Stop {
    let names: Vec<String> = blockers.iter().map(Blocker::to_string).collect();
    let mut cure: Vec<String> = blockers
        .iter()
        .filter(|blocker| blocker.pid != 0)
        .map(|blocker| format!("select pg_terminate_backend({})", blocker.pid))
        .collect();
    cure.push("postrider slot create".to_owned());
    Stop {
        reason: Reason::OpenTransactions,
        what: format!("the slot {} was not created", subject.slot()),
        why: format!(
            "it begins where no transaction is open, and after {} s these still were: {}; nothing is left \
             of the attempt",
            options.wait.as_secs(),
            if names.is_empty() { "unknown ones".to_owned() } else { names.join(", ") }
        ),
        cure,
    }
}

fn record_of(subject: &Subject) -> String {
    format!("record of the slot {} in postrider.relay", subject.slot())
}
