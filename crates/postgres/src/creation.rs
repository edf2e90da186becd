//! Creating a slot: it waits for every open transaction to end, and somebody must be told for whom.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::admin::{Admin, LOOK_LIMIT};
use crate::error::{Error, Reason, Stop};
use crate::failure::Doing;
use crate::init::{Init, Progress};
use crate::subject::Subject;

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

impl Admin {
    /// Creates the slot on a connection of its own, which waits for every open transaction to end; says
    /// whom it waits for; gives up after `options.wait` and leaves nothing behind.
    pub(crate) async fn create_slot(
        &self,
        subject: &Subject,
        options: Init,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Error> {
        let creator = self.twin().await?;
        let pid = creator.backend_pid().await?;
        creator.batch("create the slot", Doing::Replicate, "set lock_timeout = 0").await?;
        // If we are killed while it waits, it must not be created for nobody. Not every platform has it.
        let vigilant =
            creator.batch("", Doing::Replicate, "set client_connection_check_interval = '1s'").await;
        drop(vigilant);
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
            Ok(Ok(())) => return Ok(()),
            Ok(Err(Error::Outage(_))) | Err(_) => {}
            Ok(Err(stop)) => return Err(stop),
        }
        self.is_gone(subject, pid).await?;
        Err(gave_up(subject, options, &blockers).into())
    }

    /// Waits until the creator has dropped its half of a slot: it says that it was cancelled first.
    async fn is_gone(&self, subject: &Subject, creator: i32) -> Result<(), Error> {
        let gone = async {
            while let Some(slot) = self.inspect(subject).await?.slot {
                if slot.active_pid != Some(creator) {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let late = || Error::Outage("cancel the creation of the slot: the server did not do it".to_owned());
        timeout(LOOK_LIMIT, gone).await.map_err(|_| late())?
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
