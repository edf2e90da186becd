//! `postrider init`: creates what is missing in the database and says what it did.

use std::process::ExitCode;
use std::time::Duration;

use postrider_postgres::{Admin, Progress};

use super::table::say;
use crate::cli::{Creation, Init};
use crate::config::Config;
use crate::peers;

/// Each object on a line, created or present; then what comes next.
pub(crate) async fn init(config: &Config, init: &Init) -> anyhow::Result<ExitCode> {
    let subject = peers::subject(config)?;
    let admin = Admin::connect(&peers::server(config)?).await?;
    let options = options(init.creation);
    if init.dry_run {
        for planned in admin.init_plan(&subject, options).await? {
            // As SQL, so that an administrator can read it, and feed it to psql.
            if planned.present {
                say(&format!("-- {}: present\n", planned.object))?;
            } else {
                say(&format!("-- {}: missing, would be created by\n{};\n", planned.object, planned.sql))?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    admin.init(&subject, options, &mut |progress| tell(&progress)).await?;
    say("next: postrider run\n")?;
    Ok(ExitCode::SUCCESS)
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
    eprintln!("waiting for {} s until these end: {who}", waited.as_secs());
}
