//! One change of a transaction, understood: an event, a row to be passed over, or no row at all.

use crate::command::Command;
use crate::decode::{DecodeError, Decoded, decode};
use crate::lsn::Position;
use crate::mapping::{Mapped, Mapping, Refused, Settings};
use crate::relation::{Relation, Relations};

/// What one change comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An event, ready to publish.
    Event(Mapped),
    /// An event that cannot become a message: owed all the same.
    Refused(Refused),
    /// An operator asks for something.
    Command(Command),
    /// An operator asks for what the relay does not understand: why, in words.
    BadCommand(String),
    /// Nothing to publish, to be counted.
    Ignored(Ignored),
    /// The server describes a relation, a type or an origin: nothing happened.
    Description,
}

/// What is never an event. [`Ignored::as_str`] is the metrics label `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// A row was inserted into a table that is no outbox.
    OtherTable,
    /// A row was inserted into the table of commands that is not for this relay, or not understood.
    Command,
    /// A row was updated, in any table.
    Update,
    /// A row was deleted, from any table.
    Delete,
    /// Tables were truncated.
    Truncate,
    /// A logical message (`pg_logical_emit_message`); [`crate::Frame::Message`] brings those.
    Message,
    /// A letter that protocol version 1 does not have.
    Unknown(u8),
}

impl Change {
    /// Whether this is a row change, which counts in a [`Position`]'s index.
    pub fn is_row(&self) -> bool {
        match self {
            Change::Event(_) | Change::Refused(_) | Change::Command(_) | Change::BadCommand(_) => true,
            Change::Ignored(ignored) => ignored.is_row(),
            Change::Description => false,
        }
    }
}

impl Ignored {
    /// Every word [`Ignored::as_str`] can say.
    pub const WORDS: [&str; 7] =
        ["other_table", "command", "update", "delete", "truncate", "message", "unknown"];

    /// The word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Ignored::OtherTable => "other_table",
            Ignored::Command => "command",
            Ignored::Update => "update",
            Ignored::Delete => "delete",
            Ignored::Truncate => "truncate",
            Ignored::Message => "message",
            Ignored::Unknown(_) => "unknown",
        }
    }

    fn is_row(self) -> bool {
        match self {
            Ignored::OtherTable | Ignored::Command | Ignored::Update | Ignored::Delete => true,
            Ignored::Truncate | Ignored::Message | Ignored::Unknown(_) => false,
        }
    }
}

/// Reads the changes of one session after the other.
#[derive(Debug)]
pub struct Mapper {
    mapping: Mapping,
    relations: Relations,
}

impl Mapper {
    /// Reads with these settings.
    pub fn new(settings: Settings) -> Mapper {
        Mapper { mapping: Mapping::new(settings), relations: Relations::default() }
    }

    /// A new session: the server describes every relation again, under ids of its own.
    pub fn reset(&mut self) {
        self.relations = Relations::default();
    }

    /// Reads one change, a [`crate::Frame::Change`]. `position` is where the change stands if it is
    /// a row ([`Change::is_row`]); else it is not used up.
    pub fn read(&mut self, frame: &[u8], position: Position) -> Result<Change, DecodeError> {
        Ok(match decode(frame)? {
            Decoded::Insert { relation, new } => match self.relations.by_id(relation) {
                Some(Relation::Outbox(layout)) => {
                    if new.len() != layout.width {
                        return Err(DecodeError {
                            what: "as many values as the relation has columns",
                            at: 6,
                        });
                    }
                    match self.mapping.map(layout, &new, position) {
                        Ok(mapped) => Change::Event(mapped),
                        Err(refused) => Change::Refused(refused),
                    }
                }
                Some(Relation::Command(layout)) => match layout.read(&new, position) {
                    Ok(command) => Change::Command(command),
                    Err(why) => Change::BadCommand(why),
                },
                Some(Relation::Other) => Change::Ignored(Ignored::OtherTable),
                None => return Err(DecodeError { what: "id of a relation described before", at: 1 }),
            },
            Decoded::Update { .. } => Change::Ignored(Ignored::Update),
            Decoded::Delete { .. } => Change::Ignored(Ignored::Delete),
            Decoded::Truncate { .. } => Change::Ignored(Ignored::Truncate),
            Decoded::Message { .. } => Change::Ignored(Ignored::Message),
            Decoded::Unknown(letter) => Change::Ignored(Ignored::Unknown(letter)),
            Decoded::Relation(message) => {
                self.relations.describe(&message, &self.mapping.settings);
                Change::Description
            }
            Decoded::Type { id, schema, name } => {
                self.relations.name_type(id, schema, name);
                Change::Description
            }
            Decoded::Origin { .. } => Change::Description,
            Decoded::Begin { .. } | Decoded::Commit { .. } => {
                return Err(DecodeError { what: "change inside a transaction", at: 0 });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    const POSITION: Position = Position { commit_lsn: Lsn(1), index: 0 };
    const INSERT: &[u8] = b"I\0\0\0\x07N\0\x01n";

    #[test]
    fn a_row_needs_its_relation_described_in_this_session() {
        let unknown = DecodeError { what: "id of a relation described before", at: 1 };
        let mut mapper = Mapper::new(Settings::default());
        assert_eq!(mapper.read(INSERT, POSITION), Err(unknown));
        let relation = b"R\0\0\0\x07public\0other\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff";
        assert_eq!(mapper.read(relation, POSITION), Ok(Change::Description));
        assert_eq!(mapper.read(INSERT, POSITION), Ok(Change::Ignored(Ignored::OtherTable)));
        mapper.reset();
        assert_eq!(mapper.read(INSERT, POSITION), Err(unknown));
    }

    #[test]
    fn a_table_is_known_by_its_whole_name() {
        let check = |schema: &str, name: &str, expected: Ignored| {
            let mut mapper = Mapper::new(Settings::default());
            let columns = b"d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff";
            let relation = [format!("R\0\0\0\x07{schema}\0{name}\0").as_bytes(), columns].concat();
            assert_eq!(mapper.read(&relation, POSITION), Ok(Change::Description));
            assert_eq!(mapper.read(INSERT, POSITION), Ok(Change::Ignored(expected)), "{schema}.{name}");
        };
        check("public", "outbox", Ignored::OtherTable);
        check("postrider", "outbox2", Ignored::OtherTable);
        check("postrider", "Outbox", Ignored::OtherTable);
        check("", "outbox", Ignored::OtherTable);
        check("public", "command", Ignored::OtherTable);
    }

    #[test]
    fn a_row_of_another_width_than_its_relation_is_no_event() {
        let mut mapper = Mapper::new(Settings::default());
        let relation = b"R\0\0\0\x07postrider\0outbox\0d\0\x02\
            \x01id\0\0\0\0\x17\xff\xff\xff\xff\0payload\0\0\0\0\x72\xff\xff\xff\xff";
        assert_eq!(mapper.read(relation, POSITION), Ok(Change::Description));
        let what = "as many values as the relation has columns";
        assert_eq!(mapper.read(INSERT, POSITION), Err(DecodeError { what, at: 6 }));
    }

    #[test]
    fn only_rows_count_in_the_index() {
        let mut mapper = Mapper::new(Settings::default());
        let mut check = |frame: &[u8], ignored: Ignored, is_row: bool| {
            let change = mapper.read(frame, POSITION).unwrap();
            assert_eq!(change, Change::Ignored(ignored));
            assert_eq!(change.is_row(), is_row, "{change:?}");
            assert!(Ignored::WORDS.contains(&ignored.as_str()));
        };
        check(b"U\0\0\0\x07N\0\0", Ignored::Update, true);
        check(b"D\0\0\0\x07K\0\0", Ignored::Delete, true);
        check(b"T\0\0\0\0\0", Ignored::Truncate, false);
        check(b"M\0\0\0\0\0\0\0\0\0\0\0\0\0\0", Ignored::Message, false);
        check(b"A123", Ignored::Unknown(b'A'), false);
    }
}
