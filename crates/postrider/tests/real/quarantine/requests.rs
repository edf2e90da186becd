//! `quarantine retry` and `discard`: what is written, what is waited for, and how it ends.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testenv::eventually;
use testenv::relay::Output;

use super::{Ward, park_many};
use crate::run::{command, expect, let_pass};
use crate::stage::LIMIT;

impl Ward {
    /// The verbs and arguments of all requests.
    async fn requests(&self) -> Result<Vec<(String, Value)>> {
        let rows =
            self.stage.sql.query("select verb, argument::text from postrider.command order by id", &[]);
        let rows = rows.await.context("read the requests")?;
        let read = |row: &tokio_postgres::Row| Ok((row.get(0), serde_json::from_str(row.get(1))?));
        rows.iter().map(read).collect()
    }

    /// Runs a command, which has two minutes, while a relay that follows its request by `statements` is played:
    /// `$id` is the request's.
    async fn followed(&self, words: &str, statements: &[&str]) -> Result<Output> {
        let before = self.requests().await?.len();
        let relay = async {
            let newer = format!("select id::text from postrider.command where id > {before}");
            let id: String = eventually("the request", LIMIT, async || {
                Ok(self.stage.sql.query_opt(&newer, &[]).await?.map(|row| row.get(0)))
            })
            .await?;
            for statement in statements {
                self.stage.execute(&statement.replace("$id", &id)).await?;
            }
            anyhow::Ok(())
        };
        let (output, played) = tokio::join!(command(&self.program, words), relay);
        played?;
        output
    }
}

/// What a relay does on reading a retry of the aggregate order/1, and on success.
const RELEASE: &str =
    "update postrider.quarantine set state = 'released', command_id = $id, changed_at = now()
                       where aggregate_id = '1' and aggregate_type = 'order' and state = 'parked'
                         and commit_lsn < 'FFFFFF/0'";
const DELIVER: &str = "update postrider.quarantine set state = 'delivered', changed_at = now()
                       where command_id = $id and state = 'released'";

/// An event of order/1 that is parked behind the request: it is not meant.
const LATER: &str = "insert into postrider.quarantine
                     select (jsonb_populate_record(q, '{\"commit_lsn\": \"FFFFFF/0\"}')).*
                     from postrider.quarantine q where index = 2 and state = 'parked'";

#[tokio::test]
async fn a_retry_names_whole_aggregates_and_ends_when_all_are_delivered() -> Result<()> {
    let ward = Ward::new("quarantine retry").await?;
    ward.park_some().await?;
    let output = ward.followed("quarantine retry --reason unrouted", &[LATER, RELEASE, DELIVER]).await?;
    assert_eq!(output.code, Some(0), "{output}");
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(
        lines[0], "request 1: retry 1 event, and 2 events that wait behind them, with 1 aggregate",
        "{output}"
    );
    assert_eq!(lines[1..5].iter().filter(|line| line.contains("\tdelivered\t")).count(), 3, "{output}");
    assert_eq!(lines[5..], ["3 delivered"], "{output}");
    let slot = ward.stage.name();
    let key = "select encode(aggregate_key, 'hex') from postrider.quarantine where index = 0";
    let key = ward.stage.text(key).await?;
    let argument = json!({ "slot": slot, "aggregates": [key], "positions": [] });
    assert_eq!(ward.requests().await?, [("retry".to_owned(), argument)]);
    let asked = "select requested_by from postrider.command";
    assert_eq!(ward.stage.text(asked).await?, ward.stage.rig.scope.named("operator"));

    // Now nothing of it is parked.
    let (printed, _) = expect(&ward.program, "quarantine retry --reason unrouted", 0).await?;
    assert_eq!(printed, "nothing to retry: no such event is parked\n");
    let (nothing, _) = ward.document("quarantine retry --reason unrouted", 0).await?;
    assert_eq!((&nothing["asked"], &nothing["requests"]), (&json!(false), &json!([])));
    assert_eq!(ward.requests().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn what_is_parked_again_is_told_with_its_reason() -> Result<()> {
    let ward = Ward::new("quarantine again").await?;
    ward.park_some().await?;
    let again = "update postrider.quarantine set state = 'parked', changed_at = now(), attempts = 24,
                   detail = 'still nobody' where command_id = $id and index > 0";
    let first = "update postrider.quarantine set state = 'delivered', changed_at = now()
                 where command_id = $id and index = 0";
    let output = ward
        .followed("quarantine retry --aggregate order/1 --json --wait 1000", &[RELEASE, first, again])
        .await?;
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("2 events could not be delivered and parked again"), "{output}");
    let document: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(document["became"]["parked_again"], 2, "{document}");
    assert_eq!(document["became"]["delivered"], 1, "{document}");
    assert_eq!((&document["events"], &document["followers"]), (&json!(3), &json!(0)));
    // Those that failed come first.
    let outcomes = document["outcomes"].as_array().context("an array")?;
    let became: Vec<_> = outcomes.iter().map(|outcome| (&outcome["position"], &outcome["became"])).collect();
    assert_eq!(
        became,
        [
            (&json!("0/A0/1"), &json!("parked_again")),
            (&json!("0/A0/2"), &json!("parked_again")),
            (&json!("0/A0/0"), &json!("delivered"))
        ]
    );
    assert_eq!(
        (&outcomes[0]["reason"], &outcomes[0]["detail"]),
        (&json!("follower"), &json!("still nobody"))
    );
    Ok(())
}

#[tokio::test]
async fn a_request_that_nobody_reads_stands_in_the_log() -> Result<()> {
    let ward = Ward::new("quarantine unread").await?;
    ward.park_some().await?;
    let (printed, said) = expect(&ward.program, "quarantine retry --all --wait 1", 1).await?;
    assert!(printed.ends_with("\n5 not read yet\n"), "{printed}");
    assert!(said.contains("the relay has not read the request within 1 s: it stands in the log"), "{said}");
    let (printed, _) = expect(&ward.program, "quarantine retry --id m-3 --id m-4 --no-wait", 0).await?;
    assert_eq!(printed, "request 2: retry 2 events\n");
    let (document, _) = ward.document("quarantine retry --position 0/A0/0 --no-wait", 0).await?;
    assert_eq!(document["requests"], json!([3]));
    assert_eq!((&document["followers"], &document["became"]), (&json!(2), &Value::Null));
    let requests = ward.requests().await?;
    assert_eq!(requests[0].1["aggregates"].as_array().map(Vec::len), Some(1), "{requests:?}");
    assert_eq!(requests[0].1["positions"], json!(["0/A0/3", "0/A0/4"]));
    assert_eq!(requests[1].1["positions"], json!(["0/A0/3", "0/A0/4"]));
    assert_eq!(requests[2].1["aggregates"], requests[0].1["aggregates"]);
    Ok(())
}

#[tokio::test]
async fn a_request_that_was_read_and_not_followed_is_not_waited_for() -> Result<()> {
    let ward = Ward::new("quarantine left").await?;
    ward.park_some().await?;
    let past = format!("select pg_replication_slot_advance('{}', pg_current_wal_lsn())", ward.stage.name());
    // Others write to the same log: a slot that stands still may stand before the end that the command saw.
    let follow = async {
        loop {
            ward.stage.execute(&past).await?;
            let_pass(Duration::from_millis(100)).await;
        }
    };
    let output = tokio::select! {
        // The command's end is the end.
        biased;
        output = command(&ward.program, "quarantine retry --id m-3 --wait 1000") => output?,
        failed = follow => return failed,
    };
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stdout.ends_with("1 left parked\n"), "{output}");
    assert!(output.stderr.contains("has read the request and left 1 event parked"), "{output}");
    Ok(())
}

#[tokio::test]
async fn what_is_still_being_sent_and_what_others_did_is_told() -> Result<()> {
    let ward = Ward::new("quarantine others").await?;
    ward.park_some().await?;
    let output = ward.followed("quarantine retry --aggregate order/1 --wait 2", &[RELEASE]).await?;
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stdout.ends_with("3 being sent\n"), "{output}");
    assert!(output.stderr.contains("after 2 s 3 events still being sent"), "{output}");
    let other = "update postrider.quarantine set state = 'discarded', changed_at = now() where index = 3";
    let output = ward.followed("quarantine retry --id m-3 --wait 1000", &[other]).await?;
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("1 event discarded by another request"), "{output}");
    Ok(())
}

#[tokio::test]
async fn a_discard_says_what_is_lost_and_names_exactly_that() -> Result<()> {
    let ward = Ward::new("quarantine discard").await?;
    ward.park_some().await?;
    let (printed, said) = expect(&ward.program, "quarantine discard --aggregate order/1", 2).await?;
    assert_eq!(printed, "");
    assert!(said.contains("discarding loses 3 events of 1 aggregate (") && said.contains("--yes"), "{said}");
    let (document, _) = ward.document("quarantine discard --reason follower", 2).await?;
    assert_eq!((&document["asked"], &document["events"]), (&json!(false), &json!(2)));
    let (printed, _) = expect(&ward.program, "quarantine discard --id m-6", 0).await?;
    assert_eq!(printed, "nothing to discard: no such event is parked\n");
    assert!(ward.requests().await?.is_empty());

    let discard = "update postrider.quarantine set state = 'discarded', command_id = $id, changed_at = now()
                   where index = 2";
    let output = ward
        .followed(
            "quarantine discard --aggregate order/1 --reason follower --id m-2 --yes --json",
            &[discard],
        )
        .await?;
    assert_eq!(output.code, Some(0), "{output}");
    let document: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(document["became"]["discarded"], 1, "{document}");
    assert_eq!(document["outcomes"][0]["became"], "discarded");
    let requests = ward.requests().await?;
    assert_eq!(requests[0].0, "discard");
    assert_eq!((&requests[0].1["aggregates"], &requests[0].1["positions"]), (&json!([]), &json!(["0/A0/2"])));
    // Whole aggregates only where the filter asks for nothing else.
    for words in ["--aggregate order/1 --aggregate order/2/a", "--all"] {
        expect(&ward.program, &format!("quarantine discard {words} --yes --no-wait"), 0).await?;
    }
    let requests = ward.requests().await?;
    let lists =
        |request: &Value| ["aggregates", "positions"].map(|list| request[list].as_array().map(Vec::len));
    assert_eq!(lists(&requests[1].1), [Some(1), Some(1)], "{requests:?}");
    assert_eq!(lists(&requests[2].1), [Some(1), Some(2)], "{requests:?}");
    Ok(())
}

#[tokio::test]
async fn a_large_request_is_several_rows_of_one_transaction() -> Result<()> {
    let ward = Ward::new("quarantine many").await?;
    park_many(&ward, 2500).await?;
    let (printed, _) = expect(&ward.program, "quarantine retry --all --no-wait", 0).await?;
    assert_eq!(printed, "requests 1 to 3: retry 2500 events, with 2500 aggregates\n");
    let sizes = "select string_agg(jsonb_array_length(argument -> 'aggregates')::text, ' ' order by id)
                   || ' ' || count(distinct xmin::text) from postrider.command";
    assert_eq!(ward.stage.text(sizes).await?, "1000 1000 500 1");
    Ok(())
}
