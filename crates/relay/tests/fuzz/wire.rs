//! Where pgoutput's messages hold lengths, counts and values: this test's own reading of the manual's "Logical
//! Replication Message Formats", for undamaged messages.

use std::ops::Range;

/// A value of a row: where its letter, its length (if it has one) and its bytes stand.
pub(crate) struct Cell {
    pub(crate) letter: usize,
    pub(crate) length: Option<Range<usize>>,
    pub(crate) end: usize,
}

/// The cells of a new row (`I`), as far as the message is sound.
pub(crate) fn cells(message: &[u8]) -> Vec<Cell> {
    let mut cells = Vec::new();
    if message.first() != Some(&b'I') || message.len() < 8 {
        return cells;
    }
    let mut at = 8;
    while let Some(letter) = message.get(at) {
        let (length, end) = match letter {
            b't' | b'b' => {
                let Some(bytes) = message.get(at + 1..at + 5) else { break };
                let bytes = u32::from_be_bytes(bytes.try_into().expect("four bytes"));
                (Some(at + 1..at + 5), at + 5 + bytes as usize)
            }
            _ => (None, at + 1),
        };
        if end > message.len() {
            break;
        }
        cells.push(Cell { letter: at, length, end });
        at = end;
    }
    cells
}

/// The fields that say how much follows.
pub(crate) fn counts(message: &[u8]) -> Vec<Range<usize>> {
    let field = match message.first() {
        Some(b'I') => Some(6..8),
        Some(b'T') => Some(1..5),
        Some(b'R') => described(message).map(|table| table.columns),
        _ => None,
    };
    let lengths = cells(message).into_iter().filter_map(|cell| cell.length);
    field.into_iter().chain(lengths).filter(|field| field.end <= message.len()).collect()
}

/// What a relation message (`R`) says.
pub(crate) struct Described<'a> {
    pub(crate) id: u32,
    pub(crate) schema: &'a [u8],
    pub(crate) name: &'a [u8],
    /// Where the number of columns stands.
    pub(crate) columns: Range<usize>,
}

/// Reads a relation message's beginning.
pub(crate) fn described(message: &[u8]) -> Option<Described<'_>> {
    let rest = message.strip_prefix(b"R")?;
    let (id, rest) = rest.split_first_chunk()?;
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let (schema, name, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let columns = message.len() - rest.len() + 1;
    (rest.len() >= 3).then(|| Described {
        id: u32::from_be_bytes(*id),
        schema,
        name,
        columns: columns..columns + 2,
    })
}

/// The relation that a row belongs to.
pub(crate) fn relation_of(message: &[u8]) -> Option<u32> {
    message.get(1..5).map(|id| u32::from_be_bytes(id.try_into().expect("four bytes")))
}

/// A big-endian number of eight bytes.
pub(crate) fn number(message: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(message[at..at + 8].try_into().expect("eight bytes"))
}
