//! The operator's commands on the quarantine, as a role that is `postrider_operator` and nothing else. The rows
//! are written, and the relay is played, by SQL.

mod relay;
mod requests;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testenv::relay::Program;
use testenv::{Scope, Sql};

use crate::run::{expect, expect_clean};
use crate::stage::{BINARY, MARKER, Stage};

const PASSWORD: &str = "relay-secret";

/// An operator before a quarantine.
struct Ward {
    stage: Stage,
    /// The binary as the operator.
    program: Program,
    url: String,
}

impl Ward {
    async fn new(test: &str) -> Result<Self> {
        let stage = Stage::new(test).await?;
        let role = stage.rig.scope.named("operator");
        stage
            .execute(&format!("create role {role} login password '{PASSWORD}' in role postrider_operator"))
            .await?;
        let url = stage.rig.scope.postgres_url(&role, PASSWORD);
        let program = stage.rig.admin.clone().set("postgres.url", &url);
        Ok(Self { stage, program, url })
    }

    /// The operator's own connection.
    async fn sql(&self) -> Result<Sql> {
        Sql::connect(&self.url).await
    }

    /// Parks rows: each is `index, state, scope, reason, type, id` in SQL, of one transaction at 0/A0.
    async fn park(&self, rows: &str) -> Result<()> {
        let slot = self.stage.name();
        self.stage
            .execute(&format!(
                "insert into postrider.quarantine (slot, commit_lsn, index, state, scope, reason, detail, attempts,
                   aggregate_key, aggregate_type, aggregate_id, exchange, routing_key, message_id, event_type,
                   content_type, headers, body, committed_at)
                 select '{slot}', '0/A0', r.index, r.state, r.scope, r.reason, 'it is ' || r.reason, 12,
                   substr(sha256(convert_to(r.type, 'UTF8') || '\\x00'::bytea || convert_to(r.id, 'UTF8')), 1, 16),
                   r.type, r.id, 'events', 'a.key', 'm-' || r.index, 'placed', 'application/json',
                   '{{\"version\": 2}}', convert_to('{{\"note\": \"{MARKER}\"}}', 'UTF8'), now()
                 from (values {rows}) r(index, state, scope, reason, type, id)"
            ))
            .await
    }

    /// The usual rows: a poison with two followers, one alone, one without an aggregate, and three that are not
    /// parked.
    async fn park_some(&self) -> Result<()> {
        self.park(
            "(0, 'parked', 'key', 'unrouted', 'order', '1'),
             (1, 'parked', 'key', 'follower', 'order', '1'),
             (2, 'parked', 'key', 'follower', 'order', '1'),
             (3, 'parked', 'event', 'bad_header', 'order', '2/a'),
             (4, 'parked', 'event', 'null_column', null, null),
             (5, 'released', 'key', 'unconfirmed', 'cart', '1'),
             (6, 'delivered', 'key', 'unrouted', 'cart', '2'),
             (7, 'discarded', 'key', 'unrouted', 'order', '1')",
        )
        .await
    }

    /// The document that a command prints, and what it says beside.
    async fn document(&self, words: &str, code: i32) -> Result<(Value, String)> {
        let (printed, said) = expect(&self.program, &format!("{words} --json"), code).await?;
        let document = serde_json::from_str(&printed).with_context(|| format!("{words}: {printed}"))?;
        Ok((document, said))
    }

    /// The indexes of the rows that are listed.
    async fn listed(&self, words: &str) -> Result<Vec<u32>> {
        let (list, _) = self.document(&format!("quarantine list {words}"), 0).await?;
        let index = |event: &Value| {
            let position = event["position"].as_str()?.strip_prefix("0/A0/")?;
            position.parse().ok()
        };
        let list = list.as_array().context("a list is an array")?;
        list.iter().map(index).collect::<Option<_>>().with_context(|| format!("positions: {list:?}"))
    }
}

#[tokio::test]
async fn every_filter_chooses_what_it_says() -> Result<()> {
    let ward = Ward::new("quarantine filters").await?;
    assert_eq!(expect(&ward.program, "quarantine list --json", 0).await?.0, "[]\n");
    ward.park_some().await?;
    // Of another slot.
    ward.stage
        .execute(
            "insert into postrider.quarantine (slot, commit_lsn, index, scope, reason, detail, attempts,
               committed_at) values ('another', '0/A0', 9, 'event', 'unrouted', '', 1, now())",
        )
        .await?;
    ward.stage
        .execute(
            "update postrider.quarantine set parked_at = now() - interval '3 hours' where index in (1, 4)",
        )
        .await?;
    for (words, expected) in [
        ("", &[0, 1, 2, 3, 4, 5][..]),
        ("--all", &[0, 1, 2, 3, 4, 5]),
        ("--all-states", &[0, 1, 2, 3, 4, 5, 6, 7]),
        ("--id m-3 --id m-5 --id m-6", &[3, 5]),
        ("--aggregate order/1", &[0, 1, 2]),
        ("--aggregate order/2/a --aggregate cart/2 --all-states", &[3, 6]),
        ("--aggregate order/2", &[]),
        ("--reason unrouted", &[0]),
        ("--reason unrouted --reason null_column", &[0, 4]),
        ("--reason unrouted --all-states", &[0, 6, 7]),
        ("--older-than 2h", &[1, 4]),
        ("--older-than 7200s", &[1, 4]),
        ("--older-than 4h", &[]),
        ("--position 0/A0/2 --position 0/a0/4 --position 0/A1/2", &[2, 4]),
        ("--aggregate order/1 --reason follower --older-than 100m", &[1]),
        ("--id m-1 --reason unrouted", &[]),
        ("--limit 2", &[0, 1]),
        ("--limit 6", &[0, 1, 2, 3, 4, 5]),
    ] {
        assert_eq!(ward.listed(words).await?, expected, "{words}");
    }
    let (_, said) = ward.document("quarantine list --limit 5", 0).await?;
    assert_eq!(said, "postrider: these are the first 5 events; more with --limit\n");
    let (_, said) = ward.document("quarantine list --limit 6", 0).await?;
    assert_eq!(said, "");
    let (_, said) = ward.document("quarantine list --id m-6", 0).await?;
    assert!(said.contains("--all-states"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_list_has_its_columns_and_its_keys() -> Result<()> {
    let ward = Ward::new("quarantine list").await?;
    ward.park_some().await?;
    let long = "x".repeat(5000);
    ward.stage
        .execute(&format!(
            "update postrider.quarantine set detail = e'a\\tb\\x1b[2J' || '{long}', parked_at = '2026-01-02 03:04:05+00'
             where index = 4; update postrider.quarantine set body = null where index = 3"
        ))
        .await?;
    let (printed, _) = expect(&ward.program, "quarantine list", 0).await?;
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 7, "{printed}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{printed}");
    assert_eq!(rows[0][..4], ["position", "state", "reason", "aggregate"]);
    assert_eq!(
        rows[1][..8],
        ["0/A0/0", "parked", "unrouted", "order/1", "m-0", "placed", "12", &(MARKER.len() + 12).to_string()]
    );
    assert_eq!((rows[4][3], rows[4][7]), ("order/2/a", "-"));
    assert_eq!((rows[5][3], rows[5][8]), ("-", "2026-01-02T03:04:05.000000Z"));
    assert!(rows[5][9].starts_with("a\\tb\\u{1b}[2Jxx") && rows[5][9].ends_with('…'), "{}", rows[5][9]);
    assert!(rows[5][9].len() < 1100, "{}", rows[5][9]);

    let (list, _) = ward.document("quarantine list --id m-4", 0).await?;
    let event = list[0].as_object().context("an object")?;
    let mut keys: Vec<&str> = event.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "aggregate_id",
            "aggregate_type",
            "attempts",
            "bytes",
            "changed_at",
            "changed_by",
            "committed_at",
            "detail",
            "event_type",
            "exchange",
            "message_id",
            "parked_at",
            "position",
            "reason",
            "routing_key",
            "scope",
            "state"
        ]
    );
    assert_eq!((&event["aggregate_type"], &event["attempts"]), (&Value::Null, &json!(12)));
    Ok(())
}

#[tokio::test]
async fn a_hundred_thousand_rows_are_never_in_memory() -> Result<()> {
    const ROWS: usize = 100_000;
    let ward = Ward::new("quarantine size").await?;
    park_many(&ward, ROWS).await?;
    let (list, said) = ward.document("quarantine list", 0).await?;
    assert_eq!(list.as_array().map(Vec::len), Some(1000));
    assert!(said.contains("more with --limit"), "{said}");

    let mut command = Command::new(BINARY);
    command.env("POSTRIDER_POSTGRES_URL", &ward.url).env("POSTRIDER_POSTGRES_SLOT", ward.stage.name());
    command.args(["quarantine", "list", "--json", "--limit", "1000000"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start the list")?;
    let mut lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    // The pipe holds less than the last ten thousand rows: it is still there.
    let most = lines.by_ref().take(ROWS * 9 / 10).collect::<Result<Vec<_>, _>>()?;
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", child.id())).context("look at the list")?;
    let rest = lines.collect::<Result<Vec<_>, _>>()?;
    ensure!(child.wait()?.success(), "list");
    let list: Vec<Value> = serde_json::from_str(&most.into_iter().chain(rest).collect::<String>())?;
    assert_eq!(list.len(), ROWS);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak")?;
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().context("a number")?;
    println!("the peak was {peak_kb} kB");
    // The rows alone are 120 MB.
    assert!(peak_kb < 64 << 10, "{peak_kb} kB");
    Ok(())
}

/// So many rows, each of an aggregate of its own and of more than a thousand bytes.
async fn park_many(ward: &Ward, rows: usize) -> Result<()> {
    let slot = ward.stage.name();
    ward.stage
        .execute(&format!(
            "insert into postrider.quarantine (slot, commit_lsn, index, scope, reason, detail, attempts,
               aggregate_key, aggregate_type, aggregate_id, message_id, event_type, exchange, routing_key,
               body, committed_at)
             select '{slot}', '0/A0', g, 'key', 'unrouted', repeat('x', 800), 12, decode(md5(g::text), 'hex'),
               'order', g, 'm-' || g, 'placed', 'events', 'a.key', 'x', now() from generate_series(1, {rows}) g"
        ))
        .await
}

#[tokio::test]
async fn the_payload_is_shown_only_when_it_is_asked_for() -> Result<()> {
    let ward = Ward::new("quarantine show").await?;
    ward.park_some().await?;
    ward.stage
        .execute(
            "update postrider.quarantine set body = '\\xff00', changed_by = 'ada', command_id = 7 where index = 1;
             update postrider.quarantine set body = null, outbox_row = '{\"id\": null}' where index = 4",
        )
        .await?;
    let (printed, _) = expect(&ward.program, "quarantine show --id m-0 --id m-1", 0).await?;
    for part in [
        "position      0/A0/0\n",
        "reason        unrouted: it is unrouted\n",
        "aggregate     order/1\n",
        "exchange      \"events\"\n",
        "routing key   a.key\n",
        "headers       {\"version\": 2}\n",
        "by ada (request 7)\n",
    ] {
        assert!(printed.contains(part), "expect {part:?} in {printed}");
    }
    let (list, _) = ward.document("quarantine show", 0).await?;
    let list = list.as_array().context("an array")?;
    assert_eq!(list.len(), 6);
    assert!(list.iter().all(|event| event.get("payload").is_none()), "{list:?}");
    assert_eq!(list[0]["headers"], json!({ "version": 2 }));
    assert_eq!((&list[1]["command_id"], &list[4]["outbox_row"]), (&json!(7), &json!({ "id": null })));
    assert_eq!(
        (&list[0]["content_type"], &list[0]["timestamp_s"]),
        (&json!("application/json"), &Value::Null)
    );

    let output = ward.program.output(&["quarantine", "show", "--all", "--payload"]).await?;
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.stdout.contains(&format!("{{\"note\": \"{MARKER}\"}}\n")), "{output}");
    assert!(output.stdout.contains("(not UTF-8: in hexadecimal digits)\nff00\n"), "{output}");
    let output = ward.program.output(&["quarantine", "show", "--payload", "--json"]).await?;
    let list: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(list[0]["payload"], format!("{{\"note\": \"{MARKER}\"}}"));
    assert_eq!((&list[1]["payload"], &list[1]["payload_encoding"]), (&json!("ff00"), &json!("hex")));
    assert_eq!((&list[4]["payload"], &list[4]["payload_encoding"]), (&Value::Null, &Value::Null));
    expect_clean(&output.stderr);

    let (printed, said) = expect(&ward.program, "quarantine show --id m-6", 0).await?;
    assert!(printed.is_empty() && said.contains("--all-states"), "{said}");
    let (printed, _) = expect(&ward.program, "quarantine show --id m-6 --all-states", 0).await?;
    assert!(printed.contains("state         delivered since "), "{printed}");
    Ok(())
}

#[tokio::test]
async fn who_is_no_operator_is_told_the_grant_and_what_is_missing_the_command() -> Result<()> {
    let ward = Ward::new("quarantine rights").await?;
    ward.park_some().await?;
    let stranger = ward.stage.rig.scope.named("stranger");
    ward.stage.execute(&format!("create role {stranger} login password '{PASSWORD}'")).await?;
    let url = ward.stage.rig.scope.postgres_url(&stranger, PASSWORD);
    let program = ward.program.clone().set("postgres.url", url);
    let words = [
        "quarantine list",
        "quarantine show",
        "quarantine retry --all --no-wait",
        "quarantine discard --all",
    ];
    for words in words {
        let (printed, said) = expect(&program, words, 1).await?;
        assert_eq!(printed, "", "{words}");
        assert!(said.contains(&format!("cure: grant postrider_operator to {stranger}\n")), "{words}: {said}");
    }
    // The relay's own role sees the quarantine and asks nothing.
    let (_, said) = expect(&ward.stage.rig.program, "quarantine retry --all --no-wait", 1).await?;
    assert!(said.contains("grant postrider_operator to postrider_relay"), "{said}");
    ward.stage.execute(&format!("grant postrider_operator to {stranger}")).await?;
    expect(&program, "quarantine list", 0).await?;

    // An operator mends a message, and leaves its state to the relay.
    let sql = ward.sql().await?;
    sql.batch_execute("update postrider.quarantine set routing_key = 'b.key' where reason = 'unrouted'")
        .await?;
    let refused = sql.batch_execute("update postrider.quarantine set state = 'delivered'").await;
    assert!(refused.is_err_and(|error| error.code().is_some_and(|code| code.code() == "42501")));

    ward.stage.execute("drop table postrider.quarantine").await?;
    let (_, said) = expect(&ward.program, "quarantine list", 1).await?;
    assert!(said.contains("cure: postrider init\n"), "{said}");
    let bare = Stage::bare(Scope::shared("quarantine nothing").await?).await?;
    let (_, said) = expect(&bare.rig.admin, "quarantine list", 1).await?;
    assert!(said.contains("cure: postrider init\n"), "{said}");
    Ok(())
}

#[tokio::test]
async fn status_counts_what_is_undelivered() -> Result<()> {
    let ward = Ward::new("quarantine status").await?;
    let admin = &ward.stage.rig.admin;
    let (printed, _) = expect(admin, "status", 0).await?;
    assert!(printed.contains("\nquarantine empty\n"), "{printed}");
    ward.park_some().await?;
    for program in [admin, &ward.program, &ward.stage.rig.program] {
        let (printed, _) = expect(program, "status", 0).await?;
        let expected = "\nquarantine 5 parked, 1 released \
                        (bad_header 1, follower 2, null_column 1, unconfirmed 1, unrouted 1)\n";
        assert!(printed.contains(expected), "{printed}");
    }
    let (status, _) = ward.document("status", 0).await?;
    assert_eq!(
        status["quarantine"],
        json!({
            "parked": 5,
            "released": 1,
            "reasons": { "bad_header": 1, "follower": 2, "null_column": 1, "unconfirmed": 1, "unrouted": 1 },
            "complete": true,
        })
    );
    ward.stage.execute("drop table postrider.quarantine").await?;
    let (status, _) = ward.document("status", 0).await?;
    assert_eq!(status["quarantine"], Value::Null);
    assert!(status["quarantine_error"].as_str().is_some_and(|error| error.contains("42P01")), "{status}");
    Ok(())
}
