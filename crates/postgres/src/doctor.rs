//! What `postrider doctor` finds on the Postgres side: what stops a relay, and what will hurt one day.

use postrider_relay::Lsn;
use serde::Deserialize;

use crate::admin::Admin;
use crate::error::Error;
use crate::failure::{self, Doing};
use crate::inspect::Inspection;
use crate::subject::{Subject, TableName, literal, quoted};

/// One thing to know, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symptom {
    /// How bad it is.
    pub severity: Severity,
    /// The object and its state.
    pub what: String,
    /// What it leads to.
    pub why: String,
    /// One SQL statement or one `postrider` command each, in order; empty where there is nothing to run.
    pub cure: Vec<String>,
}

/// How bad a symptom is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// The relay runs, but not safely for ever.
    Warning,
    /// The relay could not run, or not safely.
    Error,
}

/// What only the doctor asks.
#[derive(Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each a column of the answer")]
struct Vitals {
    replicates: bool,
    uses_schema: bool,
    writes_record: bool,
    reads_command: bool,
    keep_mb: i64,
    timeout_ms: i64,
    synchronous: String,
    synchronized: Option<String>,
    idle_timeout: Option<String>,
    standbys: i64,
    free_senders: i64,
    fsync: bool,
    full_page_writes: bool,
    transactions: Vec<Open>,
    prepared: Vec<Prepared>,
    columns: Vec<Missing>,
}

#[derive(Debug, Deserialize)]
struct Open {
    pid: i32,
    user: Option<String>,
    application: Option<String>,
    state: Option<String>,
    seconds: i64,
}

#[derive(Debug, Deserialize)]
struct Prepared {
    gid: String,
    seconds: i64,
}

#[derive(Debug, Deserialize)]
struct Missing {
    schema: String,
    table: String,
    column: String,
}

impl Admin {
    /// Examines everything the relay stands on, worst first. `columns`: those that the mapping needs of every
    /// outbox table.
    pub async fn doctor(&self, subject: &Subject, columns: &[&str]) -> Result<Vec<Symptom>, Error> {
        let seen = self.inspect(subject).await?;
        let mut symptoms = Vec::new();
        if let Err(stop) = seen.verdict(subject) {
            symptoms.push(Symptom {
                severity: Severity::Error,
                what: stop.what,
                why: stop.why,
                cure: stop.cure,
            });
        }
        let vitals = self.vitals(subject, columns).await?;
        vitals.rights(self, &seen, &mut symptoms);
        vitals.table(&mut symptoms);
        vitals.server(&mut symptoms);
        vitals.transactions(&mut symptoms);
        vitals.failover(self, subject, &seen, &mut symptoms);
        slot_room(subject, &seen, &mut symptoms);
        symptoms.sort_by_key(|symptom| std::cmp::Reverse(symptom.severity));
        Ok(symptoms)
    }

    async fn vitals(&self, subject: &Subject, columns: &[&str]) -> Result<Vitals, Error> {
        let array = |words: Vec<String>| format!("array[{}]::text[]", words.join(", "));
        let names = |name: fn(&TableName) -> &str| {
            array(subject.tables().iter().map(|table| literal(name(table))).collect())
        };
        let (schemas, tables) = (names(|table| &table.schema), names(|table| &table.table));
        let columns = array(columns.iter().map(|column| literal(column)).collect());
        let statement = format!(
            "{VITALS_HEAD} unnest({schemas}, {tables}) t(schema, name), unnest({columns}) c(name) {VITALS_TAIL}"
        );
        let rows = self.query("examine the server", Doing::Relay, &statement, &[]).await?;
        let text: &str = rows.first().map(|row| row.get(0)).unwrap_or_default();
        serde_json::from_str(text)
            .map_err(|e| Error::Outage(format!("examine the server: read its answer: {e}")))
    }
}

const VITALS_HEAD: &str = "
select jsonb_build_object(
  'replicates', (select rolreplication or rolsuper from pg_roles where rolname = current_user),
  'uses_schema', coalesce(has_schema_privilege(to_regnamespace('postrider'), 'usage'), false),
  'writes_record', coalesce(has_table_privilege(to_regclass('postrider.relay'), 'select')
    and has_table_privilege(to_regclass('postrider.relay'), 'insert')
    and has_table_privilege(to_regclass('postrider.relay'), 'update'), false),
  'reads_command', coalesce(has_table_privilege(to_regclass('postrider.command'), 'select'), false),
  'keep_mb', (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'),
  'timeout_ms', (select setting::bigint from pg_settings where name = 'wal_sender_timeout'),
  'synchronous', current_setting('synchronous_standby_names'),
  'synchronized', current_setting('synchronized_standby_slots', true),
  'idle_timeout', current_setting('idle_replication_slot_timeout', true),
  'standbys', (select count(*) from pg_replication_slots where slot_type = 'physical'),
  'free_senders', current_setting('max_wal_senders')::bigint
    - (select count(*) from pg_stat_get_wal_senders()),
  'fsync', current_setting('fsync')::boolean,
  'full_page_writes', current_setting('full_page_writes')::boolean,
  'transactions', coalesce((
    select jsonb_agg(jsonb_build_object('pid', pid, 'user', usename, 'application', nullif(application_name, ''),
      'state', state, 'seconds', extract(epoch from now() - xact_start)::bigint) order by xact_start)
    from pg_stat_activity
    where backend_type = 'client backend' and pid <> pg_backend_pid()
      and xact_start < now() - interval '60 s'), '[]'),
  'prepared', coalesce((
    select jsonb_agg(jsonb_build_object('gid', gid, 'seconds', extract(epoch from now() - prepared)::bigint))
    from pg_prepared_xacts where prepared < now() - interval '60 s'), '[]'),
  'columns', coalesce((select jsonb_agg(jsonb_build_object('schema', t.schema, 'table', t.name, 'column', c.name))
    from";

/// Asks the catalog: `to_regclass` answers only those who may use the schema, and a relay need not.
const VITALS_TAIL: &str = "
    , pg_namespace n, pg_class r
    where n.nspname = t.schema and r.relnamespace = n.oid and r.relname = t.name and not exists (
      select from pg_attribute a
      where a.attrelid = r.oid and a.attname = c.name and not a.attisdropped)), '[]'))::text";

impl Vitals {
    fn rights(&self, admin: &Admin, seen: &Inspection, symptoms: &mut Vec<Symptom>) {
        let role = quoted(&admin.0.server.user);
        if !self.replicates {
            symptoms.push(warning(
                format!("role {role} has no REPLICATION"),
                "the server decides when the relay connects; managed servers grant it in other ways",
                vec![format!("alter role {role} replication")],
            ));
        }
        let all = self.uses_schema && self.writes_record && self.reads_command && seen.rights().is_ok();
        if seen.schema && !all {
            symptoms.push(Symptom {
                severity: Severity::Error,
                what: format!("role {role} lacks a right in the schema postrider"),
                why: "the relay keeps there which slot is its own, and what cannot be delivered".to_owned(),
                cure: failure::relay_grants(&role),
            });
        }
        if self.free_senders == 0 {
            symptoms.push(warning(
                "every walsender of the server is in use".to_owned(),
                "the relay cannot connect, or could not again; the setting takes effect at a restart",
                vec!["alter system set max_wal_senders = 20".to_owned()],
            ));
        }
    }

    fn table(&self, symptoms: &mut Vec<Symptom>) {
        for Missing { schema, table, column } in &self.columns {
            let table = TableName { schema: schema.clone(), table: table.clone() };
            symptoms.push(Symptom {
                severity: Severity::Error,
                what: format!("the table {table} has no column {column}"),
                why: "no row of it can become a message: each goes to the quarantine".to_owned(),
                cure: vec![format!("alter table {table} add column {} text", quoted(column))],
            });
        }
    }

    fn server(&self, symptoms: &mut Vec<Symptom>) {
        if self.keep_mb < 0 {
            symptoms.push(warning(
                "max_slot_wal_keep_size is unlimited".to_owned(),
                "while no relay runs the slot keeps all WAL, until the disk is full and the database stops; a \
                 limit sacrifices the slot first (the events stay in the table)",
                vec![
                    "alter system set max_slot_wal_keep_size = '50GB'".to_owned(),
                    "select pg_reload_conf()".to_owned(),
                ],
            ));
        } else if self.keep_mb < 1024 {
            symptoms.push(warning(
                format!("max_slot_wal_keep_size is {} MB", self.keep_mb),
                "a short outage of the broker under load is enough to lose the slot",
                vec![
                    "alter system set max_slot_wal_keep_size = '10GB'".to_owned(),
                    "select pg_reload_conf()".to_owned(),
                ],
            ));
        }
        let timeout = vec![
            "alter system set wal_sender_timeout = '60s'".to_owned(),
            "select pg_reload_conf()".to_owned(),
        ];
        if self.timeout_ms == 0 {
            symptoms.push(warning(
                "wal_sender_timeout is off".to_owned(),
                "the slot of a relay whose host is gone stays taken until TCP gives up, and no other can take over",
                timeout,
            ));
        } else if self.timeout_ms < 2000 {
            symptoms.push(warning(
                format!("wal_sender_timeout is {} ms", self.timeout_ms),
                "a pause of the host is taken for the end of the relay",
                timeout,
            ));
        }
        if !(self.fsync && self.full_page_writes) {
            symptoms.push(warning(
                "fsync or full_page_writes is off".to_owned(),
                "a crash of the host may lose or damage what was committed, and the slot with it",
                vec![
                    "alter system set fsync = on".to_owned(),
                    "alter system set full_page_writes = on".to_owned(),
                    "select pg_reload_conf()".to_owned(),
                ],
            ));
        }
        if self.idle_timeout.as_deref().is_some_and(|timeout| timeout != "0") {
            symptoms.push(warning(
                format!(
                    "idle_replication_slot_timeout is {}",
                    self.idle_timeout.as_deref().unwrap_or_default()
                ),
                "a slot without a relay for so long is lost",
                vec![
                    "alter system set idle_replication_slot_timeout = 0".to_owned(),
                    "select pg_reload_conf()".to_owned(),
                ],
            ));
        }
    }

    fn transactions(&self, symptoms: &mut Vec<Symptom>) {
        for open in &self.transactions {
            let who = [open.user.as_deref(), open.application.as_deref(), open.state.as_deref()];
            let who: Vec<&str> = who.into_iter().flatten().collect();
            symptoms.push(warning(
                format!(
                    "pid {} ({}) has a transaction open for {} s",
                    open.pid,
                    who.join(", "),
                    open.seconds
                ),
                "the slot keeps the WAL since its beginning, and a new slot cannot be created before its end",
                vec![format!("select pg_terminate_backend({})", open.pid)],
            ));
        }
        for prepared in &self.prepared {
            symptoms.push(warning(
                format!("the transaction {} is prepared for {} s", literal(&prepared.gid), prepared.seconds),
                "the slot keeps the WAL since its beginning; commit it, or roll it back",
                vec![format!("rollback prepared {}", literal(&prepared.gid))],
            ));
        }
    }

    fn failover(&self, admin: &Admin, subject: &Subject, seen: &Inspection, symptoms: &mut Vec<Symptom>) {
        let standbys = self.standbys > 0 || !self.synchronous.is_empty();
        let waits = self.synchronized.as_deref().is_some_and(|slots| !slots.is_empty());
        if standbys && !waits {
            symptoms.push(warning(
                "the slot may be ahead of the standbys".to_owned(),
                if admin.version() >= 17 {
                    "an event can be published whose commit a failover then loses; synchronized_standby_slots names \
                     the physical slots that must have a commit first"
                } else {
                    "an event can be published whose commit a failover then loses; PostgreSQL 17 can prevent it \
                     (synchronized_standby_slots)"
                },
                Vec::new(),
            ));
        }
        let failover = seen.slot.as_ref().and_then(|slot| slot.failover);
        if standbys && failover == Some(false) {
            symptoms.push(warning(
                format!("the slot {} is not kept up on standbys", subject.slot()),
                "after a failover it does not exist, and what it had not delivered is lost to the relay; \
                 a replication connection can alter it: ALTER_REPLICATION_SLOT … (FAILOVER)",
                Vec::new(),
            ));
        }
    }
}

/// What the slot keeps, and how near it is to being lost.
fn slot_room(subject: &Subject, seen: &Inspection, symptoms: &mut Vec<Symptom>) {
    let Some(slot) = &seen.slot else { return };
    let kept = slot.restart_lsn.map(|Lsn(restart)| seen.wal_lsn.0.saturating_sub(restart));
    match (slot.safe_wal_size, kept) {
        (Some(safe), Some(kept)) if u64::try_from(safe).unwrap_or(0) < kept => symptoms.push(warning(
            format!("the slot {} keeps {kept} bytes of WAL, and {safe} more make it lost", subject.slot()),
            "the relay does not keep up, or does not run, or a transaction is open for long",
            Vec::new(),
        )),
        _ => {}
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        symptoms.push(Symptom {
            severity: Severity::Error,
            what: format!("the slot {} keeps more WAL than it may", subject.slot()),
            why: "the next checkpoint may lose it; let the relay run now, or raise the limit".to_owned(),
            cure: vec![
                "alter system set max_slot_wal_keep_size = -1".to_owned(),
                "select pg_reload_conf()".to_owned(),
            ],
        });
    }
}

fn warning(what: String, why: &str, cure: Vec<String>) -> Symptom {
    Symptom { severity: Severity::Warning, what, why: why.to_owned(), cure }
}
