//! A message goes through the table unchanged.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use postrider_relay::quarantine::{Draft, Parking};
use postrider_relay::{HeaderValue, Position};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{Ward, released};

/// Any text that Postgres can hold.
fn text() -> impl Strategy<Value = Box<str>> {
    "[^\\x00]{0,20}".prop_map(Into::into)
}

fn headers() -> impl Strategy<Value = Vec<(std::sync::Arc<str>, HeaderValue)>> {
    let value = prop_oneof![
        // In a header a NUL is no trouble.
        "\\PC{0,20}|\\x00[\\x00-\\x7f]{0,5}".prop_map(|text| HeaderValue::Text(text.into())),
        any::<bool>().prop_map(HeaderValue::Bool),
        any::<i64>().prop_map(HeaderValue::Long),
    ];
    let version = option::of(any::<i32>().prop_map(HeaderValue::Int));
    (version, proptest::collection::btree_map("[^\\x00]{0,10}", value, 0..6)).prop_map(|(version, others)| {
        let version = version.map(|value| ("event_version".into(), value));
        let others = others.into_iter().filter(|(name, _)| name != "event_version");
        // Not in the order of their names.
        others.rev().map(|(name, value)| (name.into(), value)).chain(version).collect()
    })
}

fn draft() -> impl Strategy<Value = Draft> {
    let texts = vec(option::of(text()), 6);
    let body = option::of(vec(any::<u8>(), 0..400).prop_map(Bytes::from));
    let row = option::of(text().prop_map(|text| serde_json::json!({ "a": text }).to_string().into()));
    let timestamp_s = option::of(0..=i64::MAX.unsigned_abs());
    (texts, timestamp_s, headers(), body, row).prop_map(|(mut texts, timestamp_s, headers, body, row)| {
        let mut text = || texts.pop().flatten();
        Draft {
            exchange: text().map(|text| text.as_ref().into()),
            routing_key: text(),
            message_id: text(),
            event_type: text(),
            correlation_id: text(),
            content_type: text().map(|text| text.as_ref().into()),
            timestamp_s,
            headers,
            bad_headers: Vec::new(),
            body,
            row,
        }
    })
}

/// Stores the drafts as released rows, reads them back, and compares.
async fn goes_through(ward: &mut Ward, drafts: Vec<(Draft, i64)>) -> Result<()> {
    let parked: Vec<Parking> = (1..)
        .zip(drafts)
        .map(|(n, (draft, committed_us))| Parking {
            draft,
            committed_us,
            position: Position { index: u32::MAX - n, ..ward.at(n.into()) },
            ..released(ward.row(0, "a"))
        })
        .collect();
    assert_eq!(ward.store(parked.clone()).await?, u64::try_from(parked.len())?);
    let (rows, more) = ward.page(&[], &[], parked.len(), usize::MAX).await?;
    assert!(!more);
    assert_eq!(rows.len(), parked.len());
    for (row, parking) in rows.iter().zip(&parked) {
        assert_eq!(row.fault, None);
        assert_eq!(row.draft, parking.draft);
        assert_eq!((row.position, row.committed_us), (parking.position, parking.committed_us));
    }
    ward.rig.execute("truncate postrider.quarantine").await
}

#[tokio::test(flavor = "multi_thread")]
async fn any_draft_comes_back_as_it_was() -> Result<()> {
    let mut ward = Ward::ready("quarantine_drafts").await?;
    let mut runner = TestRunner::deterministic();
    let times = -60_000_000_000_000_000_i64..200_000_000_000_000_000;
    let strategy = (draft(), times);
    let drafts = (0..500)
        .map(|_| strategy.new_tree(&mut runner).map(|tree| tree.current()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    goes_through(&mut ward, drafts).await?;

    let body =
        |bytes: Option<&'static [u8]>| Draft { body: bytes.map(Bytes::from_static), ..Draft::default() };
    let large =
        Draft { body: Some((0..1 << 20).map(|n: u32| n.to_le_bytes()[0]).collect()), ..Draft::default() };
    let drafts = vec![
        Draft::default(),
        body(None),
        body(Some(b"")),
        body(Some(b"\0\xff")),
        large.clone(),
        large,
        Draft { exchange: Some("".into()), routing_key: Some("schlüssel.😀".into()), ..Draft::default() },
        Draft {
            headers: vec![("a\u{1F600}\"\\".into(), HeaderValue::Text("\0\u{1}\u{7f}\u{2028}ü".into()))],
            ..Draft::default()
        },
        Draft {
            headers: vec![
                ("event_version".into(), HeaderValue::Int(i32::MIN)),
                ("x".into(), HeaderValue::Long(1)),
            ],
            ..Draft::default()
        },
        Draft { row: Some("{\"id\": null, \"b\":  \"x\"}".into()), ..Draft::default() },
    ];
    let drafts = drafts.into_iter().zip([
        0,
        1,
        -1,
        999_999,
        1_000_000,
        i64::from(i32::MAX),
        946_684_799_999_999,
        946_684_800_000_000,
        946_684_800_000_001,
        1_700_000_000_123_457,
    ]);
    goes_through(&mut ward, drafts.collect()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_edit_has_broken_comes_back_with_the_words() -> Result<()> {
    let mut ward = Ward::ready("quarantine_edits").await?;
    ward.store(vec![released(ward.row(1, "a"))]).await?;
    for (edit, expected) in [
        ("headers = '{\"a\": {\"secret\": 1}}'", Some("the header \"a\" is nested")),
        ("headers = '{\"a\": null}'", Some("the header \"a\" is null")),
        ("headers = '{\"a\": 1.5}'", Some("the header \"a\" is no integer of 64 bits")),
        (
            "headers = '{\"event_version\": 3000000000}'",
            Some("the header \"event_version\" is no integer of 32 bits"),
        ),
        ("headers = '[]'", Some("headers is no JSON object")),
        ("headers = '{}', timestamp_s = -1", Some("timestamp_s is negative")),
        ("headers = '{\"b\": 1, \"a\": true, \"b\": \"x\"}', timestamp_s = null", None),
    ] {
        // As an operator may.
        ward.rig
            .execute(&format!(
                "set role postrider_operator; update postrider.quarantine set {edit}; reset role"
            ))
            .await?;
        let (rows, _) = ward.page(&[], &[], 1, 1).await?;
        let row = rows.first().context("find the row")?;
        assert_eq!(row.fault.as_deref(), expected, "{edit}");
        let void = row.draft == Draft::default();
        assert_eq!(void, expected.is_some(), "{edit}");
        if !void {
            let two = [("b".into(), HeaderValue::Text("x".into())), ("a".into(), HeaderValue::Bool(true))];
            assert_eq!(row.draft.headers, two);
        }
    }
    Ok(())
}
