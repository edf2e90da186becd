//! The decoder and the mapping against what a real Postgres sent: `corpus/`, whose README says how it is recorded.

use std::fmt::Write as _;

use proptest::prelude::*;

use crate::change::{Change, Mapper};
use crate::decode::{Decoded, decode};
use crate::lsn::{Lsn, Position};
use crate::mapping::{AggregateKey, Mapped, Refused, Settings};
use crate::message::HeaderValue;
use crate::relation::RelationName;

const DEFAULT: &[u8] = include_bytes!("../corpus/default.bin");
const TYPES: &[u8] = include_bytes!("../corpus/types.bin");
const TRANSACTIONS: &[u8] = include_bytes!("../corpus/transactions.bin");
const DDL: &[u8] = include_bytes!("../corpus/ddl.bin");
const PARTITIONS: &[u8] = include_bytes!("../corpus/partitions.bin");
const ALL: [&[u8]; 5] = [DEFAULT, TYPES, TRANSACTIONS, DDL, PARTITIONS];

#[test]
fn every_recording_is_read_as_written_down() {
    let check = |recording: &[u8], settings: Settings, expected: &str| {
        let actual = transcript(recording, settings);
        let differing = actual.lines().zip(expected.lines()).find(|(actual, expected)| actual != expected);
        assert!(actual == expected, "differs first in {differing:#?}, all of it is\n{actual}");
    };
    let limited = || Settings { message_bytes_max: 16 << 10, ..Settings::default() };
    check(DEFAULT, limited(), include_str!("../corpus/default.txt"));
    check(TYPES, shop(), include_str!("../corpus/types.txt"));
    check(TRANSACTIONS, limited(), include_str!("../corpus/transactions.txt"));
    check(DDL, limited(), include_str!("../corpus/ddl.txt"));
    check(PARTITIONS, limited(), include_str!("../corpus/partitions.txt"));
}

#[test]
fn every_letter_is_in_the_corpus() {
    let mut letters: Vec<u8> = ALL.into_iter().flat_map(messages).map(|message| message[0]).collect();
    letters.sort_unstable();
    letters.dedup();
    assert_eq!(letters, b"BCDIMORTUY");
}

#[test]
fn a_message_cut_short_is_refused() {
    for message in ALL.into_iter().flat_map(messages) {
        let near_the_end = message.len().saturating_sub(100)..message.len();
        for length in (0..message.len().min(500)).chain(near_the_end) {
            assert!(decode(&message[..length]).is_err(), "{length} bytes of {message:?}");
        }
        assert!(decode(&[message, b"\0"].concat()).is_err(), "a byte behind {message:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(letter in "[BCDIMORTUYA]?", bytes: Vec<u8>) {
        let mut mapper = Mapper::new(Settings::default());
        let _ = mapper.read(&[letter.as_bytes(), &bytes].concat(), POSITION);
    }

    #[test]
    fn a_recording_with_flipped_bits_is_read_or_refused(
        recording in proptest::sample::select(ALL.to_vec()),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<proptest::sample::Index>(), 0..8_u32), 1..40),
    ) {
        let mut messages: Vec<Vec<u8>> = messages(recording).map(<[u8]>::to_vec).collect();
        for (message, byte, bit) in flips {
            let message = message.get_mut(&mut messages);
            *byte.get_mut(message) ^= 1_u8 << bit;
        }
        let mut mapper = Mapper::new(Settings { tables: shop().tables, ..Settings::default() });
        for message in messages {
            let _ = mapper.read(&message, POSITION);
        }
    }
}

const POSITION: Position = Position { commit_lsn: Lsn(0x16B_3748), index: 0 };

/// Every table of `types.sql` is an outbox.
fn shop() -> Settings {
    let tables = messages(TYPES).filter_map(|message| match decode(message) {
        Ok(Decoded::Relation(relation)) => {
            Some(RelationName::new(&text(relation.schema), &text(relation.name)))
        }
        _ => None,
    });
    Settings { tables: tables.collect(), ..Settings::default() }
}

/// The messages of a recording, each behind its length.
fn messages(mut recording: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = recording.split_first_chunk()?;
        let (message, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        recording = rest;
        Some(message)
    })
}

/// What the relay makes of a recording, a line for each message.
fn transcript(recording: &[u8], settings: Settings) -> String {
    let mut mapper = Mapper::new(settings);
    let mut position = POSITION;
    let mut lines = String::new();
    for message in messages(recording) {
        let decoded = decode(message).unwrap();
        if let Decoded::Begin { commit_lsn, .. } = decoded {
            position = Position { commit_lsn, index: 0 };
        }
        let line = match decoded {
            Decoded::Begin { .. } => "begin".to_owned(),
            Decoded::Commit { commit_lsn, end_lsn, .. } => {
                assert_eq!(commit_lsn, position.commit_lsn, "known from the begin");
                assert!(commit_lsn < end_lsn);
                "commit".to_owned()
            }
            Decoded::Message { transactional, prefix, content, .. } => {
                format!("message {:?} {:?} transactional={transactional}", text(prefix), text(content))
            }
            decoded => {
                let change = mapper.read(message, position).unwrap();
                let index = position.index;
                position.index += u32::from(change.is_row());
                match change {
                    Change::Event(event) => {
                        assert_eq!(event.message.position, Position { index, ..position });
                        format!("{index} {}", outcome(&event))
                    }
                    Change::Refused(refused) => format!("{index} {}", refusal(&refused)),
                    Change::Command(command) => format!("{index} command {command:?}"),
                    Change::BadCommand(why) => format!("{index} no command: {why}"),
                    Change::Ignored(ignored) if change.is_row() => {
                        format!("{index} ignored {}", ignored.as_str())
                    }
                    Change::Ignored(ignored) => format!("ignored {}", ignored.as_str()),
                    Change::Description => description(&decoded),
                }
            }
        };
        lines += &line;
        lines.push('\n');
    }
    lines
}

fn outcome(event: &Mapped) -> String {
    let Mapped { message, aggregate, dropped_headers } = event;
    let mut line = format!(
        "event {:?} of {} by {:?} to {:?} id {:?}",
        short(&message.event_type),
        key(aggregate),
        short(&message.routing_key),
        short(&message.exchange),
        message.message_id,
    );
    if let Some(correlation_id) = &message.correlation_id {
        write!(line, " correlation {:?}", short(correlation_id)).unwrap();
    }
    write!(line, "\n    {:?} at {:?}: ", short(&message.content_type), message.timestamp_s).unwrap();
    match std::str::from_utf8(&message.body) {
        Ok(body) => write!(line, "«{}»", short(body)),
        Err(_) => write!(line, "{:?}", &message.body[..]),
    }
    .unwrap();
    for (name, value) in &message.headers {
        write!(line, "\n    {}: ", short(name)).unwrap();
        match value {
            HeaderValue::Text(text) => write!(line, "{:?}", short(text)),
            HeaderValue::Bool(value) => write!(line, "{value}"),
            HeaderValue::Int(value) => write!(line, "{value} int"),
            HeaderValue::Long(value) => write!(line, "{value} long"),
        }
        .unwrap();
    }
    if !dropped_headers.is_empty() {
        write!(line, "\n    left out: {dropped_headers:?}").unwrap();
    }
    line
}

fn refusal(refused: &Refused) -> String {
    let Refused { reason, detail, aggregate, .. } = refused;
    let aggregate = aggregate.as_ref().map_or("itself".to_owned(), key);
    format!("refused, of {aggregate}: {reason}, {}", short(detail))
}

fn description(decoded: &Decoded<'_>) -> String {
    match decoded {
        Decoded::Relation(relation) => {
            let columns: Vec<_> = relation.columns.iter().map(|column| text(column.name)).collect();
            format!("relation {}.{} ({})", text(relation.schema), text(relation.name), columns.join(", "))
        }
        Decoded::Type { schema, name, .. } => format!("type {}.{}", text(schema), text(name)),
        Decoded::Origin { name, .. } => format!("origin {}", text(name)),
        other => panic!("{other:?} describes nothing"),
    }
}

fn key(aggregate: &AggregateKey) -> String {
    let (aggregate_type, aggregate_id) = aggregate.parts();
    format!("{}/{}", short(aggregate_type), short(aggregate_id))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Long text by its beginning and its length.
fn short(text: &str) -> String {
    if text.len() <= 120 {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(10).collect();
    format!("{beginning}… ({} bytes)", text.len())
}
