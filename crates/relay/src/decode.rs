//! Decodes pgoutput's messages, protocol version 1 (PostgreSQL manual, "Logical Replication
//! Message Formats").
//!
//! Any bytes are decoded or refused: nothing here panics, reads past the end, or copies a value.
//! Names stay bytes, as a database in `SQL_ASCII` may hold what is no UTF-8.

use crate::lsn::Lsn;

/// One message, borrowed from its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded<'a> {
    /// `B`
    Begin { commit_lsn: Lsn, committed_us: i64, xid: u32 },
    /// `C`
    Commit { commit_lsn: Lsn, end_lsn: Lsn, committed_us: i64 },
    /// `O`: the transaction came from another server.
    Origin { commit_lsn: Lsn, name: &'a [u8] },
    /// `R`: comes before the first row of a relation in a session, and again after DDL.
    Relation(RelationMessage<'a>),
    /// `Y`: names a column type that is not built in; for a domain, its base type's name.
    Type { id: u32, schema: &'a [u8], name: &'a [u8] },
    /// `I`
    Insert { relation: u32, new: Tuple<'a> },
    /// `U`
    Update { relation: u32, old: Option<Tuple<'a>>, new: Tuple<'a> },
    /// `D`
    Delete { relation: u32, old: Tuple<'a> },
    /// `T`
    Truncate { relations: Vec<u32>, cascade: bool, restart_identity: bool },
    /// `M`: `pg_logical_emit_message`.
    Message { transactional: bool, lsn: Lsn, prefix: &'a [u8], content: &'a [u8] },
    /// Any other letter; the rest of the frame is not looked at.
    Unknown(u8),
}

/// A relation's name and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RelationMessage<'a> {
    pub(crate) id: u32,
    /// Empty for `pg_catalog`.
    pub(crate) schema: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) columns: Vec<Column<'a>>,
}

/// A column as its relation message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) type_id: u32,
}

/// A row's values, in the order of its relation's columns.
pub(crate) type Tuple<'a> = Vec<Value<'a>>;

/// One value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// `n`
    Null,
    /// `u`: a large value that an update did not touch, and that is not sent.
    Unchanged,
    /// `t`: as the type's output function prints it.
    Text(&'a [u8]),
    /// `b`: only with `binary 'true'`, which we never ask for.
    Binary(&'a [u8]),
}

/// The bytes are no pgoutput message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("decode a change: {what} expected at byte {at}")]
pub struct DecodeError {
    /// What should have been there.
    pub what: &'static str,
    /// The offset in the frame.
    pub at: usize,
}

/// Decodes one message. All its bytes are used, or it is refused.
pub(crate) fn decode(frame: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    let mut reader = Reader { frame, at: 0 };
    let decoded = match reader.u8("message letter")? {
        b'B' => {
            let commit_lsn = reader.lsn("commit LSN")?;
            let committed_us = reader.time()?;
            Decoded::Begin { commit_lsn, committed_us, xid: reader.u32("transaction id")? }
        }
        b'C' => {
            reader.u8("commit flags")?;
            let commit_lsn = reader.lsn("commit LSN")?;
            let end_lsn = reader.lsn("end LSN")?;
            Decoded::Commit { commit_lsn, end_lsn, committed_us: reader.time()? }
        }
        b'O' => Decoded::Origin {
            commit_lsn: reader.lsn("origin's commit LSN")?,
            name: reader.name("origin name")?,
        },
        b'R' => Decoded::Relation(relation(&mut reader)?),
        b'Y' => Decoded::Type {
            id: reader.u32("type id")?,
            schema: reader.name("type schema")?,
            name: reader.name("type name")?,
        },
        b'I' => {
            let relation = reader.u32("relation id")?;
            reader.letter(b'N', "letter N of a new row")?;
            Decoded::Insert { relation, new: tuple(&mut reader)? }
        }
        b'U' => {
            let relation = reader.u32("relation id")?;
            let old = match reader.peek() {
                Some(b'K' | b'O') => {
                    reader.u8("letter of an old row")?;
                    Some(tuple(&mut reader)?)
                }
                _ => None,
            };
            reader.letter(b'N', "letter K, O or N of a row")?;
            Decoded::Update { relation, old, new: tuple(&mut reader)? }
        }
        b'D' => {
            let relation = reader.u32("relation id")?;
            match reader.peek() {
                Some(b'K' | b'O') => reader.u8("letter of an old row")?,
                _ => return Err(reader.expected("letter K or O of an old row")),
            };
            Decoded::Delete { relation, old: tuple(&mut reader)? }
        }
        b'T' => truncate(&mut reader)?,
        b'M' => {
            let transactional = reader.u8("message flags")? & 1 == 1;
            let lsn = reader.lsn("message LSN")?;
            let prefix = reader.name("message prefix")?;
            let length = reader.length("content length")?;
            Decoded::Message { transactional, lsn, prefix, content: reader.bytes(length, "content")? }
        }
        letter => return Ok(Decoded::Unknown(letter)),
    };
    if reader.at < frame.len() {
        return Err(reader.expected("end of message"));
    }
    Ok(decoded)
}

fn relation<'a>(reader: &mut Reader<'a>) -> Result<RelationMessage<'a>, DecodeError> {
    let id = reader.u32("relation id")?;
    let schema = reader.name("relation schema")?;
    let name = reader.name("relation name")?;
    reader.u8("replica identity")?;
    let count = reader.u16("number of columns")?;
    let mut columns = Vec::with_capacity(usize::from(count).min(reader.left()));
    for _ in 0..count {
        reader.u8("column flags")?;
        let name = reader.name("column name")?;
        let type_id = reader.u32("column type")?;
        reader.u32("column type modifier")?;
        columns.push(Column { name, type_id });
    }
    Ok(RelationMessage { id, schema, name, columns })
}

fn tuple<'a>(reader: &mut Reader<'a>) -> Result<Tuple<'a>, DecodeError> {
    let count = reader.u16("number of values")?;
    let mut values = Vec::with_capacity(usize::from(count).min(reader.left()));
    for _ in 0..count {
        let at = reader.at;
        values.push(match reader.u8("letter of a value")? {
            b'n' => Value::Null,
            b'u' => Value::Unchanged,
            letter @ (b't' | b'b') => {
                let length = reader.length("value length")?;
                let bytes = reader.bytes(length, "value")?;
                if letter == b't' { Value::Text(bytes) } else { Value::Binary(bytes) }
            }
            _ => return Err(DecodeError { what: "letter n, u, t or b of a value", at }),
        });
    }
    Ok(values)
}

fn truncate<'a>(reader: &mut Reader<'a>) -> Result<Decoded<'a>, DecodeError> {
    let count = reader.length("number of relations")?;
    let flags = reader.u8("truncate flags")?;
    let mut relations = Vec::with_capacity(count.min(reader.left() / 4));
    for _ in 0..count {
        relations.push(reader.u32("relation id")?);
    }
    Ok(Decoded::Truncate { relations, cascade: flags & 1 != 0, restart_identity: flags & 2 != 0 })
}

/// From the epoch of Postgres, 2000-01-01, to that of Unix.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// Reads a frame from front to back.
struct Reader<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let bytes = rest.get(..count).ok_or_else(|| self.expected(what))?;
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let array = rest.first_chunk().ok_or_else(|| self.expected(what))?;
        self.at += N;
        Ok(*array)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array(what).map(u8::from_be_bytes)
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_be_bytes)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_be_bytes)
    }

    fn lsn(&mut self, what: &'static str) -> Result<Lsn, DecodeError> {
        self.array(what).map(u64::from_be_bytes).map(Lsn)
    }

    fn time(&mut self) -> Result<i64, DecodeError> {
        let postgres_us = self.array("commit time").map(i64::from_be_bytes)?;
        Ok(postgres_us.saturating_add(POSTGRES_EPOCH_US))
    }

    /// A length or count: a signed 32-bit number on the wire that is never negative.
    fn length(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let at = self.at;
        let length = self.array(what).map(i32::from_be_bytes)?;
        usize::try_from(length).map_err(|_| DecodeError { what, at })
    }

    /// A string that ends with a zero byte.
    fn name(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|&b| b == 0).ok_or_else(|| self.expected(what))?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    fn letter(&mut self, letter: u8, what: &'static str) -> Result<(), DecodeError> {
        if self.peek() != Some(letter) {
            return Err(self.expected(what));
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.frame.get(self.at).copied()
    }

    fn left(&self) -> usize {
        self.frame.len() - self.at
    }

    fn expected(&self, what: &'static str) -> DecodeError {
        DecodeError { what, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the corpus has no example of; all else is checked there.
    #[test]
    fn what_is_no_message_is_refused_where_it_goes_wrong() {
        let check = |frame: &[u8], what: &'static str, at: usize| {
            assert_eq!(decode(frame), Err(DecodeError { what, at }), "{frame:?}");
        };
        check(b"", "message letter", 0);
        check(b"I\0\0\0\x01O\0\0", "letter N of a new row", 5);
        check(b"I\0\0\0\x01N\0\x01x", "letter n, u, t or b of a value", 8);
        check(b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff", "value length", 9);
        check(b"I\0\0\0\x01N\0\x01t\x7f\xff\xff\xffabc", "value", 13);
        check(b"I\0\0\0\x01N\xff\xffn", "letter of a value", 9);
        check(b"U\0\0\0\x01X\0\0", "letter K, O or N of a row", 5);
        check(b"D\0\0\0\x01N\0\0", "letter K or O of an old row", 5);
        check(b"T\xff\xff\xff\xff\0", "number of relations", 1);
        check(b"T\x7f\xff\xff\xff\0\0\0\0\x01", "relation id", 10);
        check(b"Y\0\0\0\x01name", "type schema", 5);
        check(b"Y\0\0\0\x01a\0b\0c", "end of message", 9);
    }

    #[test]
    fn letters_of_other_versions_are_left_alone() {
        for letter in (0..=u8::MAX).filter(|letter| !b"BCORYIUDTM".contains(letter)) {
            assert_eq!(decode(&[letter, 1, 2, 3]), Ok(Decoded::Unknown(letter)));
        }
    }

    #[test]
    fn values_are_slices_of_the_frame() {
        let frame = b"I\0\0\0\x07N\0\x04nut\0\0\0\x02abb\0\0\0\0";
        let new = vec![Value::Null, Value::Unchanged, Value::Text(&frame[15..17]), Value::Binary(b"")];
        assert_eq!(decode(frame), Ok(Decoded::Insert { relation: 7, new }));
    }

    #[test]
    fn times_count_from_the_epoch_of_unix() {
        let check = |postgres_us: i64, expected| {
            let frame = [b"B", &[0; 8][..], &postgres_us.to_be_bytes(), &[0; 4]].concat();
            let begin = Decoded::Begin { commit_lsn: Lsn(0), committed_us: expected, xid: 0 };
            assert_eq!(decode(&frame), Ok(begin));
        };
        check(0, 946_684_800_000_000);
        check(-946_684_800_000_000, 0);
        check(i64::MAX, i64::MAX);
    }
}
