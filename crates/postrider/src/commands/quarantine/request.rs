//! `postrider quarantine retry` and `discard`: what is asked of the relay, and what became of it.
//!
//! The request is a row in the log: from the moment it is written it is followed, whether anybody waits or not.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_postgres::{Admin, Asked, Filter, Outcome};
use postrider_relay::Verb;
use serde::Serialize;

use super::aggregate;
use crate::cli::Ask;
use crate::commands::{NOT_ASKED, table};

/// How often the relay is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Events that are named one by one; all are counted.
const NAMED: u32 = 1000;

/// What is printed with `--json`.
#[derive(Default, Serialize)]
struct Document {
    /// `retry` or `discard`.
    verb: &'static str,
    /// False if nothing was written: nothing is meant, or `--yes` is missing.
    asked: bool,
    /// The request's rows in `postrider.command`, by id.
    requests: Vec<i64>,
    /// Parked events that the filters mean.
    events: u64,
    /// Parked events of their aggregates that go with them.
    followers: u64,
    /// The aggregates that the request names.
    aggregates: u64,
    /// What became of them, counted; null without waiting.
    became: Option<Counts>,
    /// The same one by one, at most 1,000, those first that have not become what was asked.
    outcomes: Vec<OutcomeDocument>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    delivered: u64,
    discarded: u64,
    /// It was tried, and failed.
    parked_again: u64,
    /// It is being sent.
    released: u64,
    /// The relay has not read the request.
    not_read: u64,
    /// The relay has read the request and left it parked.
    left: u64,
}

#[derive(Serialize)]
struct OutcomeDocument {
    position: String,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    message_id: Option<String>,
    /// A key of `became`.
    became: Became,
    /// Why it is parked, or was.
    reason: String,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Became {
    Delivered,
    Discarded,
    ParkedAgain,
    Released,
    NotRead,
    Left,
}

impl Became {
    /// `ours`: the request brought it there. `passed`: the slot is behind the request.
    fn of(state: &str, ours: bool, passed: bool) -> Self {
        match state {
            "delivered" => Became::Delivered,
            "discarded" => Became::Discarded,
            "released" => Became::Released,
            _ if ours => Became::ParkedAgain,
            _ if passed => Became::Left,
            _ => Became::NotRead,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Became::Delivered => "delivered",
            Became::Discarded => "discarded",
            Became::ParkedAgain => "parked again",
            Became::Released => "being sent",
            Became::NotRead => "not read yet",
            Became::Left => "left parked",
        }
    }
}

impl Counts {
    const ALL: [Became; 6] = [
        Became::Delivered,
        Became::Discarded,
        Became::ParkedAgain,
        Became::Released,
        Became::NotRead,
        Became::Left,
    ];

    fn of(&mut self, became: Became) -> &mut u64 {
        match became {
            Became::Delivered => &mut self.delivered,
            Became::Discarded => &mut self.discarded,
            Became::ParkedAgain => &mut self.parked_again,
            Became::Released => &mut self.released,
            Became::NotRead => &mut self.not_read,
            Became::Left => &mut self.left,
        }
    }

    /// Those that are not zero, in words.
    fn words(&self) -> String {
        let mut counts = self.clone();
        let parts = Self::ALL.map(|became| (*counts.of(became), became.words()));
        let parts = parts.into_iter().filter(|(events, _)| *events > 0);
        parts.map(|(events, words)| format!("{events} {words}")).collect::<Vec<_>>().join(", ")
    }
}

/// Says what `discard` would lose, and does nothing.
pub(super) async fn warn(admin: &Admin, slot: &str, filter: &Filter, json: bool) -> anyhow::Result<ExitCode> {
    let tally = admin.parked_tally(slot, filter).await?;
    let document = Document {
        verb: Verb::Discard.as_str(),
        events: tally.events,
        aggregates: tally.aggregates,
        ..Document::default()
    };
    if tally.events == 0 {
        return nothing(&document, json);
    }
    let bytes = table::bytes(i64::try_from(tally.bytes).unwrap_or(i64::MAX));
    table::note(&format!(
        "postrider: discarding loses {} of {} ({bytes}) for ever: no consumer will see them; to do it, say --yes",
        count(tally.events, "event"),
        count(tally.aggregates, "aggregate"),
    ));
    if json {
        table::print_json(&document)?;
    }
    Ok(ExitCode::from(NOT_ASKED))
}

/// Writes the request, waits for what becomes of it, and tells.
pub(super) async fn ask(
    admin: &Admin,
    slot: &str,
    verb: Verb,
    filter: &Filter,
    ask: &Ask,
) -> anyhow::Result<ExitCode> {
    let json = ask.output.json;
    let asked = admin.ask(slot, verb, filter).await?;
    let mut document = Document {
        verb: verb.as_str(),
        asked: !asked.commands.is_empty(),
        requests: asked.commands.clone(),
        events: asked.events,
        followers: asked.followers,
        aggregates: asked.aggregates,
        ..Document::default()
    };
    if !document.asked {
        return nothing(&document, json);
    }
    if !json {
        table::say(&format!("{}\n", asked_words(verb, &asked)))?;
    }
    let Some(wait) = ask.wait() else {
        if json {
            table::print_json(&document)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let looked = async {
        let passed = follow(admin, &asked, wait).await?;
        let mut counts = Counts::default();
        for ending in admin.endings(&asked).await? {
            *counts.of(Became::of(&ending.state, ending.ours, passed)) += ending.events;
        }
        anyhow::Ok((passed, counts, admin.outcomes(&asked, NAMED).await?))
    };
    let (passed, counts, outcomes) =
        looked.await.with_context(|| format!("follow {} in the log", request_words(&asked)))?;
    if json {
        document.outcomes =
            outcomes.into_iter().map(|outcome| OutcomeDocument::of(outcome, passed)).collect();
        document.became = Some(counts.clone());
        table::print_json(&document)?;
    } else {
        let row = |outcome: &Outcome| cells(outcome, Became::of(&outcome.event.state, outcome.ours, passed));
        table::print(&HEADER, &outcomes.iter().map(row).collect::<Vec<_>>())?;
        table::say(&format!("{}\n", counts.words()))?;
    }
    let complaints = complaints(verb, &counts, wait);
    for complaint in &complaints {
        table::note(&format!("postrider: {complaint}"));
    }
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks until nothing is on its way, or for so long; returns whether the slot has passed the request.
async fn follow(admin: &Admin, asked: &Asked, wait: Duration) -> anyhow::Result<bool> {
    let deadline = Instant::now() + wait;
    let mut passed = false;
    loop {
        let began = Instant::now();
        let advance = admin.advance(asked).await?;
        // Only a look that began after the slot had passed has seen all that the relay did.
        let over = advance.released == 0 && (advance.untouched == 0 || passed);
        passed = advance.passed;
        let now = Instant::now();
        if over || now >= deadline {
            return Ok(passed);
        }
        // A look at a large request takes its time, and must not be all that the server does.
        let pause = LOOK_EVERY.max((now - began) * 4);
        tokio::time::sleep(pause.min(deadline - now)).await;
    }
}

fn nothing(document: &Document, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        return table::print_json(document);
    }
    table::say(&format!("nothing to {}: no such event is parked\n", document.verb))?;
    Ok(ExitCode::SUCCESS)
}

fn asked_words(verb: Verb, asked: &Asked) -> String {
    let followers = match asked.followers {
        0 => String::new(),
        1 => ", and 1 event that waits behind them".to_owned(),
        many => format!(", and {many} events that wait behind them"),
    };
    let aggregates = match asked.aggregates {
        0 => String::new(),
        some => format!(", with {}", count(some, "aggregate")),
    };
    format!(
        "{}: {} {}{followers}{aggregates}",
        request_words(asked),
        verb.as_str(),
        count(asked.events, "event")
    )
}

fn request_words(asked: &Asked) -> String {
    match &*asked.commands {
        [first, .., last] => format!("requests {first} to {last}"),
        [only] => format!("request {only}"),
        [] => "no request".to_owned(),
    }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

const HEADER: [&str; 5] = ["position", "aggregate", "id", "became", "detail"];

fn cells(outcome: &Outcome, became: Became) -> Vec<String> {
    let event = &outcome.event;
    let detail = match became {
        Became::ParkedAgain => format!("{}: {}", event.reason, table::plain(&event.detail)),
        Became::Delivered | Became::Discarded | Became::Released | Became::NotRead | Became::Left => {
            table::or_dash(None::<String>)
        }
    };
    vec![
        event.position.to_string(),
        aggregate(event),
        table::or_dash(event.message_id.as_deref().map(table::plain)),
        became.words().to_owned(),
        detail,
    ]
}

impl OutcomeDocument {
    fn of(outcome: Outcome, passed: bool) -> Self {
        let Outcome { event, ours } = outcome;
        Self {
            position: event.position.to_string(),
            became: Became::of(&event.state, ours, passed),
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            message_id: event.message_id,
            reason: event.reason,
            detail: event.detail,
        }
    }
}

/// Why not everything is as it was asked; empty if it is.
fn complaints(verb: Verb, counts: &Counts, wait: Duration) -> Vec<String> {
    let wait_s = wait.as_secs();
    let mut complaints = Vec::new();
    if counts.not_read > 0 {
        complaints.push(format!(
            "the relay has not read the request within {wait_s} s: it stands in the log and will be followed \
             when a relay runs; see postrider status"
        ));
    }
    if counts.released > 0 {
        let events = count(counts.released, "event");
        complaints.push(format!("after {wait_s} s {events} still being sent; see postrider quarantine list"));
    }
    if counts.parked_again > 0 {
        let events = count(counts.parked_again, "event");
        complaints
            .push(format!("{events} could not be delivered and parked again: mend the cause, then retry"));
    }
    if counts.left > 0 {
        let events = count(counts.left, "event");
        complaints.push(format!("the relay has read the request and left {events} parked; see its log"));
    }
    let (other, words) = match verb {
        Verb::Retry => (counts.discarded, "discarded"),
        Verb::Discard => (counts.delivered, "delivered"),
    };
    if other > 0 {
        complaints.push(format!("{} {words} by another request", count(other, "event")));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_an_event_is_told_by_its_state_and_whose_doing_that_is() {
        for (state, ours, passed, expected) in [
            ("delivered", true, true, Became::Delivered),
            ("delivered", false, false, Became::Delivered),
            ("discarded", true, false, Became::Discarded),
            ("released", false, true, Became::Released),
            ("parked", true, false, Became::ParkedAgain),
            ("parked", false, false, Became::NotRead),
            ("parked", false, true, Became::Left),
        ] {
            assert_eq!(Became::of(state, ours, passed), expected, "{state} {ours} {passed}");
        }
    }

    #[test]
    fn only_what_was_asked_is_no_complaint() {
        let wait = Duration::from_secs(7);
        for became in Counts::ALL {
            let mut counts = Counts::default();
            *counts.of(became) = 3;
            assert_eq!(counts.words(), format!("3 {}", became.words()));
            for (verb, wanted) in [(Verb::Retry, Became::Delivered), (Verb::Discard, Became::Discarded)] {
                assert_eq!(
                    complaints(verb, &counts, wait).is_empty(),
                    became == wanted,
                    "{verb:?} {became:?}"
                );
            }
        }
        let counts = Counts { not_read: 1, ..Counts::default() };
        assert!(complaints(Verb::Retry, &counts, wait)[0].contains("within 7 s"));
    }
}
