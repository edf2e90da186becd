//! What operators ask of the relay: rows of `postrider.command`, read from the slot like events.
//!
//! A request has its place in the log, so that it means the rows that stand before it, and reading it again after
//! a restart asks for nothing new.

use serde::Deserialize;

use crate::decode::{RelationMessage, Value};
use crate::lsn::Position;
use crate::quarantine::{ParkedKey, Request};

/// One request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The slot whose relay is asked.
    pub slot: String,
    /// What is asked.
    pub verb: Verb,
    /// Of which rows.
    pub request: Request,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Send the rows again.
    Retry,
    /// Give the rows up.
    Discard,
}

impl Verb {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Retry => "retry",
            Verb::Discard => "discard",
        }
    }
}

/// Where the table of commands has its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandLayout {
    id: Option<usize>,
    verb: Option<usize>,
    argument: Option<usize>,
    requested_by: Option<usize>,
}

/// The column `argument`.
#[derive(Deserialize)]
struct Argument {
    slot: String,
    #[serde(default)]
    aggregates: Vec<String>,
    #[serde(default)]
    positions: Vec<String>,
}

impl CommandLayout {
    pub(crate) fn of(message: &RelationMessage<'_>) -> CommandLayout {
        let place = |name: &str| message.columns.iter().position(|column| column.name == name.as_bytes());
        CommandLayout {
            id: place("id"),
            verb: place("verb"),
            argument: place("argument"),
            requested_by: place("requested_by"),
        }
    }

    /// The request in this row; what is wrong with it, in words, if it is none.
    pub(crate) fn read(&self, values: &[Value<'_>], position: Position) -> Result<Command, String> {
        let text = |place: Option<usize>, name: &str| match place.and_then(|at| values.get(at)) {
            Some(Value::Text(bytes)) => {
                std::str::from_utf8(bytes).map_err(|_| format!("its column {name} is no UTF-8"))
            }
            _ => Err(format!("it has no {name}")),
        };
        let id = text(self.id, "id")?.parse().map_err(|_| "its id is no number".to_owned())?;
        let verb = match text(self.verb, "verb")? {
            "retry" => Verb::Retry,
            "discard" => Verb::Discard,
            other => return Err(format!("request {id} asks to {other:?}; retry and discard are known")),
        };
        let argument: Argument = serde_json::from_str(text(self.argument, "argument")?)
            .map_err(|e| format!("the argument of request {id} cannot be read: {e}"))?;
        let aggregates = argument.aggregates.iter().map(|digits| {
            key(digits).ok_or_else(|| format!("request {id} names an aggregate that is not 32 hex digits"))
        });
        let positions = argument
            .positions
            .iter()
            .map(|text| text.parse().map_err(|e: crate::lsn::PositionError| format!("request {id}: {e}")));
        Ok(Command {
            slot: argument.slot,
            verb,
            request: Request {
                position,
                id,
                by: text(self.requested_by, "requested_by").unwrap_or_default().to_owned(),
                aggregates: aggregates.collect::<Result<_, _>>()?,
                positions: positions.collect::<Result<_, _>>()?,
            },
        })
    }
}

fn key(digits: &str) -> Option<ParkedKey> {
    let (pairs, odd) = digits.as_bytes().as_chunks::<2>();
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(nibble(high)? << 4 | nibble(low)?).ok();
    let bytes: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
    if odd.is_empty() { bytes.try_into().ok().map(ParkedKey) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const POSITION: Position = Position { commit_lsn: Lsn(9), index: 1 };
    const LAYOUT: CommandLayout =
        CommandLayout { id: Some(0), verb: Some(1), argument: Some(2), requested_by: Some(3) };

    fn read(verb: &str, argument: &str) -> Result<Command, String> {
        let text = |text: &'static str| Value::Text(text.as_bytes());
        let row = [text("7"), Value::Text(verb.as_bytes()), Value::Text(argument.as_bytes()), text("ada")];
        LAYOUT.read(&row, POSITION)
    }

    #[test]
    fn a_request_names_aggregates_and_positions() {
        let argument = r#"{"slot": "p", "positions": ["0/16B3748/3"],
            "aggregates": ["000102030405060708090a0b0c0d0eFF"]}"#;
        let command = read("retry", argument).unwrap();
        assert_eq!((&*command.slot, command.verb), ("p", Verb::Retry));
        let Request { position, id, by, aggregates, positions } = command.request;
        assert_eq!((position, id, &*by), (POSITION, 7, "ada"));
        assert_eq!(aggregates, [ParkedKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255])]);
        assert_eq!(positions, [Position { commit_lsn: Lsn(0x16B_3748), index: 3 }]);
    }

    #[test]
    fn what_is_no_request_is_said_in_words() {
        let check = |verb, argument, expected: &str| {
            let why = read(verb, argument).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        check("forget", "{}", "retry and discard are known");
        check("retry", "{}", "missing field `slot`");
        check("retry", "[]", "cannot be read");
        check("retry", r#"{"slot": "p", "positions": ["0/1"]}"#, "expected an LSN and an index");
        check("discard", r#"{"slot": "p", "aggregates": ["00"]}"#, "32 hex digits");
        check(
            "discard",
            r#"{"slot": "p", "aggregates": ["é00000000000000000000000000000"]}"#,
            "32 hex digits",
        );
    }
}
