//! `postrider quarantine`: events that could not be delivered, listed, shown, sent again or given up.
//!
//! Rows are read and printed page by page, whatever the table holds.

mod request;
mod show;

use std::collections::VecDeque;
use std::process::ExitCode;

use postrider_postgres::{Admin, Filter, ParkedEvent};
use postrider_relay::{Position, Verb};

use super::table::{self, JsonArray, Sheet, Size};
use crate::cli;
use crate::config::Config;
use crate::peers;

/// Does what the command says.
pub(crate) async fn quarantine(config: &Config, command: &cli::Quarantine) -> anyhow::Result<ExitCode> {
    let slot = &config.postgres.slot;
    let connect = async || anyhow::Ok(Admin::connect(&peers::server(config)?).await?);
    match command {
        cli::Quarantine::List(look) => list(&connect().await?, slot, look).await,
        cli::Quarantine::Show { look, payload } => show::show(&connect().await?, slot, look, *payload).await,
        cli::Quarantine::Retry(ask) => {
            let filter = ask.filter("retry")?;
            request::ask(&connect().await?, slot, Verb::Retry, &filter, ask).await
        }
        cli::Quarantine::Discard { ask, yes: true } => {
            let filter = ask.filter("discard")?;
            request::ask(&connect().await?, slot, Verb::Discard, &filter, ask).await
        }
        cli::Quarantine::Discard { ask, yes: false } => {
            let filter = ask.filter("discard")?;
            request::warn(&connect().await?, slot, &filter, ask.output.json).await
        }
    }
}

/// Positions that are read at once.
const POSITIONS: u32 = 50_000;

/// Rows that are read at once.
const PAGE: usize = 500;

/// Positions page by page, up to a limit. They are read many at a time, because finding them may take a look at
/// every row; their rows are not, because these may be large.
struct Pages<'a> {
    admin: &'a Admin,
    slot: &'a str,
    filter: Filter,
    all_states: bool,
    read: VecDeque<Position>,
    after: Option<Position>,
    /// How many more may be read.
    left: u64,
    /// There are others behind the limit.
    more: bool,
    complete: bool,
}

impl<'a> Pages<'a> {
    fn new(admin: &'a Admin, slot: &'a str, look: &cli::Look) -> Self {
        let (filter, all_states, left) = (look.filter(), look.all_states, look.limit);
        let (read, after) = (VecDeque::new(), None);
        Self { admin, slot, filter, all_states, read, after, left, more: false, complete: false }
    }

    /// The next positions, never an empty page; none at the end, and at the limit.
    async fn next(&mut self) -> anyhow::Result<Option<Vec<Position>>> {
        if self.read.is_empty() && !self.complete {
            self.read().await?;
        }
        let page: Vec<_> = self.read.drain(..self.read.len().min(PAGE)).collect();
        Ok(Some(page).filter(|page| !page.is_empty()))
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        // One more, to see whether it is there.
        let rows = POSITIONS.min(u32::try_from(self.left.saturating_add(1)).unwrap_or(POSITIONS));
        let Self { admin, slot, filter, all_states, after, .. } = self;
        let mut found = admin.parked_positions(slot, filter, *all_states, *after, rows).await?;
        self.complete = found.len() < usize::try_from(rows)?;
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        if found.len() > left {
            found.truncate(left);
            (self.more, self.complete) = (true, true);
        }
        self.left -= u64::try_from(found.len())?;
        self.after = found.last().copied().or(self.after);
        self.read = found.into();
        Ok(())
    }

    /// Ends the document, if it is one, and says what a person should know beside the rows; `found` of them were
    /// there.
    fn end(&self, array: Option<JsonArray>, found: u64) -> anyhow::Result<ExitCode> {
        array.map_or(Ok(()), JsonArray::end)?;
        if self.more {
            table::note(&format!("postrider: these are the first {found} events; more with --limit"));
        } else if found == 0 && !self.all_states {
            table::note("postrider: no such event is parked or released; the others with --all-states");
        }
        Ok(ExitCode::SUCCESS)
    }
}

const HEADER: [&str; 10] =
    ["position", "state", "reason", "aggregate", "id", "type", "attempts", "bytes", "parked", "detail"];

async fn list(admin: &Admin, slot: &str, look: &cli::Look) -> anyhow::Result<ExitCode> {
    let mut pages = Pages::new(admin, slot, look);
    let mut sheet = Sheet::new(&HEADER);
    let mut array = look.output.json.then(JsonArray::default);
    let mut found = 0;
    while let Some(positions) = pages.next().await? {
        let page = admin.parked_events(slot, &positions).await?;
        found += u64::try_from(page.len())?;
        match &mut array {
            Some(array) => array.print(&page)?,
            None if page.is_empty() => {}
            None => sheet.print(&page.iter().map(cells).collect::<Vec<_>>())?,
        }
    }
    if array.is_none() && found == 0 {
        sheet.print(&[])?;
    }
    pages.end(array, found)
}

fn cells(event: &ParkedEvent) -> Vec<String> {
    let text = |text: &Option<String>| table::or_dash(text.as_deref().map(table::plain));
    vec![
        event.position.to_string(),
        event.state.clone(),
        event.reason.clone(),
        aggregate(event),
        text(&event.message_id),
        text(&event.event_type),
        event.attempts.to_string(),
        table::or_dash(event.bytes.map(|bytes| Size::for_stdout().text(bytes))),
        event.parked_at.clone(),
        table::plain(&event.detail),
    ]
}

/// As `--aggregate` takes it.
fn aggregate(event: &ParkedEvent) -> String {
    match (&event.aggregate_type, &event.aggregate_id) {
        (None, None) => table::or_dash(None::<String>),
        (kind, id) => {
            table::plain(&format!("{}/{}", table::or_dash(kind.as_ref()), table::or_dash(id.as_ref())))
        }
    }
}
