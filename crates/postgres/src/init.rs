//! What `postrider init` makes: schema, tables, publication, then slot, and the slot's record.
//!
//! It creates what is missing and changes nothing that is there. The publication comes before the slot:
//! a slot can read nothing that was written before its publication.

use std::time::Duration;

use crate::admin::Admin;
use crate::creation::Blocker;
use crate::error::{Error, Reason, Stop};
use crate::failure::Doing;
use crate::record;
use crate::schema::{self, RELATION};
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
    /// Who may create it.
    pub(crate) needs: Needs,
}

impl Planned {
    /// It is in place now.
    pub(crate) fn made(self) -> Progress {
        Progress::Object { object: self.object, created: !self.present }
    }
}

/// What it takes to create an object, which decides the cure of 42501.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// CREATE on the database.
    Database,
    /// CREATE on the schema `postrider`, and what is in it for one's own.
    Schema,
    /// CREATE on the database, and these tables for one's own.
    Tables(Vec<TableName>),
    /// CREATEROLE.
    Role,
    /// REPLICATION.
    Replication,
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
            needs: Needs::Replication,
        });
        plan.push(Planned {
            object: record_of(subject),
            present: seen.slot.is_some() && seen.record.is_some(),
            sql: record::WRITE
                .replace("$1::text", &literal(subject.slot()))
                .replace("$2::text", &literal(subject.publication()))
                .trim()
                .to_owned(),
            needs: Needs::Schema,
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
        if let Err(error) = self.create(&planned).await {
            return Err(self.explained(error, &planned, "postrider init").await);
        }
        tell(planned.made());
        Ok(())
    }

    /// Creates it if it is missing.
    pub(crate) async fn create(&self, planned: &Planned) -> Result<(), Error> {
        if planned.present {
            return Ok(());
        }
        self.batch(&format!("create the {}", planned.object), Doing::Create, &planned.sql).await
    }

    /// The same error; if a right is missing, with what it takes to create the object by `command`. No transaction may
    /// be open: the server is asked who owns what.
    pub(crate) async fn explained(&self, error: Error, planned: &Planned, command: &str) -> Error {
        match error {
            Error::Stop(stop) if stop.reason == Reason::Rights => {
                self.who_may(*stop, planned, command).await.map_or_else(|error| error, Error::from)
            }
            other => other,
        }
    }

    async fn who_may(&self, mut stop: Stop, planned: &Planned, command: &str) -> Result<Stop, Error> {
        let (things, owners) = match &planned.needs {
            Needs::Database | Needs::Replication => return Ok(stop),
            Needs::Role => {
                stop.why = format!(
                    "role {} may not create a role, which belongs to the whole server; somebody with CREATEROLE does",
                    self.0.server.user
                );
                stop.cure = vec![format!("create {} nologin", planned.object)];
                return Ok(stop);
            }
            Needs::Schema => {
                ("the schema postrider and what is in it".to_owned(), OWNERS_OF_SCHEMA.to_owned())
            }
            Needs::Tables(tables) => {
                let may = "select where has_database_privilege(current_database(), 'create')";
                if self.query("look who may create", Doing::Create, may, &[]).await?.is_empty() {
                    return Ok(stop);
                }
                let names: Vec<String> = tables.iter().map(TableName::to_string).collect();
                (format!("the tables {}", names.join(", ")), owners_of(tables))
            }
        };
        let owners = self.query("look who may create", Doing::Create, &owners, &[]).await?;
        let owners: Vec<&str> = owners.iter().map(|row| row.get(0)).collect();
        let user = self.0.server.user.as_str();
        let who = match owners[..] {
            [one] if one != user => one,
            _ => "a superuser",
        };
        stop.why = format!(
            "role {user} may not create this; {things} belong to {}: run it as {who}",
            owners.join(" and ")
        );
        stop.cure = vec![command.to_owned()];
        Ok(stop)
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
            needs: Needs::Database,
        }];
        for table in tables {
            plan.push(Planned {
                present: self.exists(RELATION, &table.table).await?,
                sql: schema::create_table(&table.table).to_owned(),
                object: format!("table {table}"),
                needs: Needs::Schema,
            });
        }
        for (name, sql) in schema::indexes() {
            let index = TableName::ours(name);
            plan.push(Planned {
                present: self.exists(RELATION, name).await?,
                sql: sql.to_owned(),
                object: format!("index {index}"),
                needs: Needs::Schema,
            });
        }
        Ok(plan)
    }

    async fn publication(&self, subject: &Subject) -> Result<Planned, Error> {
        let publication = subject.publication();
        let tables = [subject.tables(), &[TableName::ours("command")]].concat();
        let covered: Vec<String> = tables.iter().map(TableName::to_string).collect();
        Ok(Planned {
            object: format!("publication {}", quoted(publication)),
            present: self.exists("select from pg_publication where pubname = $1", publication).await?,
            sql: format!(
                "create publication {} for table {}\n  with (publish = 'insert', \
                 publish_via_partition_root = true)",
                quoted(publication),
                covered.join(", "),
            ),
            needs: Needs::Tables(tables),
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

/// Answers the owners by name.
const OWNERS_OF_SCHEMA: &str = "
    with ours as (select oid, nspowner from pg_namespace where nspname = 'postrider')
    select pg_get_userbyid(owner)::text from (
        select nspowner from ours
        union select relowner from pg_class where relnamespace in (select oid from ours)
        union select proowner from pg_proc where pronamespace in (select oid from ours)) of_each (owner)
    order by 1";

/// The same of tables.
fn owners_of(tables: &[TableName]) -> String {
    let name = |name: &TableName| format!("({}, {})", literal(&name.schema), literal(&name.table));
    let names: Vec<String> = tables.iter().map(name).collect();
    format!(
        "select distinct pg_get_userbyid(c.relowner)::text
         from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where (n.nspname, c.relname) in ({}) order by 1",
        names.join(", ")
    )
}

fn record_of(subject: &Subject) -> String {
    format!("record of the slot {} in postrider.relay", subject.slot())
}
