//! `postrider init`: creates what is missing in the database and says what it did.

use std::process::ExitCode;
use std::time::Duration;

use postrider_postgres::{Admin, Planned, Progress};

use super::table::{note, say};
use crate::cli::{Creation, Init};
use crate::config::Config;
use crate::peers;

/// Each object on a line, created or present; then what comes next.
pub(crate) async fn init(config: &Config, init: &Init) -> anyhow::Result<ExitCode> {
    let server = peers::server(config)?;
    if init.inbox {
        let admin = Admin::connect(&server).await?;
        if init.dry_run {
            say_plan(&admin.inbox_plan().await?)?;
        } else {
            admin.init_inbox(&mut |progress| tell(&progress)).await?;
            say("next: grant postrider_consumer to the role that your consumer logs in as\n")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let subject = peers::subject(config)?;
    let admin = Admin::connect(&server).await?;
    let options = options(init.creation);
    if init.dry_run {
        say_plan(&admin.init_plan(&subject, options).await?)?;
    } else {
        admin.init(&subject, options, &mut |progress| tell(&progress)).await?;
        say("next: postrider run\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As SQL, so that an administrator can read it, and feed it to psql.
fn say_plan(plan: &[Planned]) -> anyhow::Result<()> {
    for planned in plan {
        if planned.present {
            say(&format!("-- {}: present\n", planned.object))?;
        } else {
            say(&format!("-- {}: missing, would be created by\n{};\n", planned.object, planned.sql))?;
        }
    }
    Ok(())
}

/// How the slot is to be created.
pub(super) fn options(creation: Creation) -> postrider_postgres::Init {
    postrider_postgres::Init { wait: Duration::from_secs(creation.wait), failover: !creation.no_failover }
}

/// Objects are the result, waiting is news on the way.
pub(super) fn tell(progress: &Progress) {
    match progress {
        Progress::Object { object, created } => {
            let state = if *created { "created" } else { "present" };
            // The work goes on, whether somebody reads or not.
            let _ = say(&format!("{object}: {state}\n"));
        }
        Progress::Waiting { .. } => tell_waiting(progress),
    }
}

/// Only the news: for programs that read the result as a document.
pub(super) fn tell_waiting(progress: &Progress) {
    let Progress::Waiting { waited, blockers } = progress else { return };
    let who = blockers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let who = if who.is_empty() { "open transactions".to_owned() } else { who };
    note(&format!("waiting for {} s until these end: {who}", waited.as_secs()));
}
