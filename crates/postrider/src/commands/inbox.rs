//! `postrider inbox`: what became of messages in a consumer's database.

use std::process::ExitCode;

use anyhow::bail;
use postrider_postgres::{Admin, InboxFilter, InboxRecord, InboxRow};

use super::NOT_ASKED;
use super::table::{self, note, or_dash, plain, say};
use crate::cli::Inbox;
use crate::config::Config;
use crate::peers;

const HEADER: [&str; 7] = ["consumer", "source", "id", "status", "attempts", "received", "error"];

/// What is the matter with such a database: more often than not it is the sender's.
pub(super) const NO_INBOX: &str = "find an inbox in this database: set postgres.url to the consumer's database, where \
                                   its inbox is; if it has none yet, make it there with `postrider init --inbox`";

/// Does what the command says.
pub(crate) async fn inbox(config: &Config, command: &Inbox) -> anyhow::Result<ExitCode> {
    let admin = Admin::connect(&peers::server(config)?).await?;
    if !admin.has_inbox().await? {
        bail!(NO_INBOX);
    }
    match command {
        Inbox::List { consumer, id, all_states, limit, output } => {
            let filter =
                InboxFilter { consumer: consumer.clone(), message_id: id.clone(), completed: *all_states };
            let rows = admin.inbox_rows(&filter, *limit).await?;
            if output.json {
                return table::print_json(&rows);
            }
            table::print(&HEADER, &rows.iter().map(cells).collect::<Vec<_>>())?;
        }
        Inbox::Show { consumer, id, source, output } => {
            let records = admin.inbox_records(consumer, id, source.as_deref()).await?;
            let record = only(&records)?;
            if output.json {
                return table::print_json(record);
            }
            say(&page(record))?;
        }
        Inbox::Retry { consumer, id, source } => {
            if !admin.inbox_retry(consumer, source, id).await? {
                bail!("find such a message that failed or is to be reconciled: see `postrider inbox list`");
            }
            say("it is handled afresh when it is delivered again\n")?;
        }
        Inbox::Prune { yes: false, .. } => {
            note(
                "postrider: a message whose row is gone is handled again if it is delivered again; \
                 nothing was deleted, do it with --yes",
            );
            return Ok(ExitCode::from(NOT_ASKED));
        }
        Inbox::Prune { older_than, consumer, yes: true } => {
            let mut total = 0;
            loop {
                match admin.inbox_prune(*older_than, consumer.as_deref()).await? {
                    0 => break,
                    pruned => total += pruned,
                }
            }
            say(&format!("deleted {total} completed rows\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The one that is meant.
fn only(records: &[InboxRecord]) -> anyhow::Result<&InboxRecord> {
    match records {
        [] => bail!("find such a message: see `postrider inbox list --all-states`"),
        [record] => Ok(record),
        several => {
            let sources = several.iter().map(|record| format!("{:?}", record.row.source)).collect::<Vec<_>>();
            bail!("choose one of several: say --source with one of {}", sources.join(", "))
        }
    }
}

/// For people: one column a line.
fn page(InboxRecord { row, content_sha256, lease_until, fence }: &InboxRecord) -> String {
    let text = |text: &Option<String>| or_dash(text.as_deref().map(plain));
    let lines = [
        ("consumer", plain(&row.consumer)),
        ("source", plain(&row.source)),
        ("id", plain(&row.message_id)),
        ("status", row.status.clone()),
        ("attempts", row.attempts.to_string()),
        ("received", row.received_at.clone()),
        ("completed", text(&row.completed_at)),
        ("content sha256", text(content_sha256)),
        ("lease owner", text(&row.lease_owner)),
        ("lease until", text(lease_until)),
        ("fence", fence.to_string()),
        ("outcome", text(&row.outcome)),
        ("last error", text(&row.last_error)),
    ];
    table::page(&lines)
}

fn cells(row: &InboxRow) -> Vec<String> {
    vec![
        plain(&row.consumer),
        plain(&row.source),
        plain(&row.message_id),
        row.status.clone(),
        row.attempts.to_string(),
        row.received_at.clone(),
        or_dash(row.last_error.as_deref().map(plain)),
    ]
}
