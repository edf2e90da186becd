//! What `postrider init` makes: schema, tables, publication, then slot, and the slot's record.
//!
//! It creates what is missing and changes nothing that is there. The publication comes before the slot:
//! a slot can read nothing that was written before its publication.

use std::time::Duration;

use crate::admin::Admin;
use crate::creation::Blocker;
use crate::error::{Error, Reason};
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

    pub(crate) async fn make(
        &self,
        planned: Planned,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
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

    /// The schema, the tables in it, and their indexes.
    async fn tables(&self, subject: &Subject) -> Result<Vec<Planned>, Error> {
        let outbox = TableName::default_outbox();
        let mut tables = ["command", "relay", "quarantine"].map(TableName::ours).to_vec();
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
        for (name, sql) in schema::indexes() {
            let index = TableName::ours(name);
            plan.push(Planned {
                present: self.exists("select where to_regclass($1) is not null", &index.to_string()).await?,
                sql: sql.to_owned(),
                object: format!("index {index}"),
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

    pub(crate) fn create_slot_sql(&self, subject: &Subject, options: Init) -> String {
        // The two arguments between are: not temporary, no two-phase commit.
        let failover = if self.version() >= 17 && options.failover { ", true" } else { "" };
        format!(
            "select pg_create_logical_replication_slot({}, 'pgoutput', false, false{failover})",
            literal(subject.slot())
        )
    }
}

fn record_of(subject: &Subject) -> String {
    format!("record of the slot {} in postrider.relay", subject.slot())
}
