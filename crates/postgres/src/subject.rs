//! What a relay watches: a slot, a publication and tables, by names that were checked once.

use std::fmt;
use std::str::FromStr;

/// The slot, the publication and the outbox tables of one relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    slot: String,
    publication: String,
    tables: Vec<TableName>,
}

/// A name that Postgres would not take: wrong configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a slot name.
    #[error("use {0:?} as a slot name: expected 1 to 63 lower-case letters, digits and underscores")]
    Slot(String),
    /// Not a publication name.
    #[error("use {0:?} as a publication name: expected 1 to 63 bytes without NUL")]
    Publication(String),
    /// Not a table name.
    #[error("use {0:?} as a table name: expected schema.table, with double quotes where SQL needs them")]
    Table(String),
    /// A relay without a table.
    #[error("use an empty list of outbox tables: expected at least one")]
    NoTable,
}

impl Subject {
    /// Checks the names: a slot by Postgres' rule (PostgreSQL manual, "Replication Slots"), a
    /// publication by length; at least one table.
    pub fn new(slot: &str, publication: &str, tables: Vec<TableName>) -> Result<Subject, NameError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if !fits(slot) || !slot.bytes().all(plain) {
            return Err(NameError::Slot(slot.to_owned()));
        }
        if !fits(publication) {
            return Err(NameError::Publication(publication.to_owned()));
        }
        if tables.is_empty() {
            return Err(NameError::NoTable);
        }
        Ok(Subject { slot: slot.to_owned(), publication: publication.to_owned(), tables })
    }

    /// The slot's name.
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// The publication's name, unquoted.
    pub fn publication(&self) -> &str {
        &self.publication
    }

    /// The outbox tables, never none.
    pub fn tables(&self) -> &[TableName] {
        &self.tables
    }

    /// The same publication and tables with another slot.
    pub fn with_slot(&self, slot: &str) -> Result<Subject, NameError> {
        Subject::new(slot, &self.publication, self.tables.clone())
    }
}

/// A table by schema and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    /// The schema, as it stands in the catalog.
    pub schema: String,
    /// The table, as it stands in the catalog.
    pub table: String,
}

impl TableName {
    /// The table where the application writes its events, unless configured otherwise.
    pub fn default_outbox() -> TableName {
        TableName::ours("outbox")
    }

    pub(crate) fn ours(table: &str) -> TableName {
        TableName { schema: "postrider".to_owned(), table: table.to_owned() }
    }
}

/// As SQL reads it: folded to lower case without quotes, taken as it is within; `public` without a schema.
impl FromStr for TableName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = || NameError::Table(text.to_owned());
        let (first, rest) = identifier(text.trim()).ok_or_else(refused)?;
        if rest.is_empty() {
            return Ok(TableName { schema: "public".to_owned(), table: first });
        }
        let rest = rest.strip_prefix('.').ok_or_else(refused)?;
        match identifier(rest) {
            Some((table, "")) => Ok(TableName { schema: first, table }),
            _ => Err(refused()),
        }
    }
}

/// As SQL writes it, quoted only where needed.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

/// One identifier from the front of the text, and the rest.
fn identifier(text: &str) -> Option<(String, &str)> {
    let Some(mut inner) = text.strip_prefix('"') else {
        let end = text.find(['.', '"', ' ']).unwrap_or(text.len());
        let name = text[..end].to_lowercase();
        return fits(&name).then(|| (name, &text[end..]));
    };
    let mut name = String::new();
    loop {
        let (part, rest) = inner.split_once('"')?;
        name.push_str(part);
        match rest.strip_prefix('"') {
            Some(again) => {
                name.push('"');
                inner = again;
            }
            None => return fits(&name).then_some((name, rest)),
        }
    }
}

/// A Postgres name: 1 to 63 bytes (`NAMEDATALEN` less one), no NUL.
fn fits(name: &str) -> bool {
    (1..=63).contains(&name.len()) && !name.contains('\0')
}

/// An identifier as SQL writes it, quoted where it must be.
pub(crate) fn quoted(name: &str) -> String {
    let mut bytes = name.bytes();
    let starts_plain = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let plain = starts_plain && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain && !RESERVED.split_whitespace().any(|word| word == name) {
        name.to_owned()
    } else {
        double_quoted(name)
    }
}

/// An identifier in double quotes.
pub(crate) fn double_quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string constant as SQL writes it.
pub(crate) fn literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Words that are no table's or column's name without quotes (PostgreSQL manual, "SQL Key Words").
const RESERVED: &str = "\
    all analyse analyze and any array as asc asymmetric authorization between binary bigint bit \
    boolean both case cast char character check coalesce collate collation column concurrently \
    constraint create cross current_catalog current_date current_role current_schema current_time \
    current_timestamp current_user dec decimal default deferrable desc distinct do else end except \
    exists extract false fetch float for foreign freeze from full grant greatest group grouping \
    having ilike in initially inner inout int integer intersect interval into is isnull join lateral \
    leading least left like limit localtime localtimestamp national natural nchar none normalize not \
    notnull null nullif numeric offset on only or order out outer overlaps overlay placing position \
    precision primary real references returning right row select session_user setof similar smallint \
    some substring symmetric system_user table tablesample then time timestamp to trailing treat \
    trim true union unique user using values varchar variadic verbose when where window with \
    xmlattributes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back_as_it_is_written() {
        for (text, expected) in [
            ("postrider.outbox", "postrider.outbox"),
            ("Outbox", "public.outbox"),
            ("\"Shop\".\"a\"\"b.c\"", "\"Shop\".\"a\"\"b.c\""),
            ("shop.order", "shop.\"order\""),
            (" shop.\"1st\" ", "shop.\"1st\""),
        ] {
            let name: TableName = text.parse().expect(text);
            assert_eq!(name.to_string(), expected);
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for text in ["", ".", "a.", ".b", "a.b.c", "\"a", "\"\"", "a b", &"x".repeat(64)] {
            assert!(text.parse::<TableName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_that_postgres_refuses_are_refused() {
        let tables = || vec![TableName::default_outbox()];
        for slot in ["", "Postrider", "post-rider", "a b", &"x".repeat(64)] {
            assert_eq!(Subject::new(slot, "p", tables()), Err(NameError::Slot(slot.to_owned())));
        }
        assert!(Subject::new("s_1", "Any Name", tables()).is_ok());
        assert!(Subject::new("s", "", tables()).is_err());
        assert_eq!(Subject::new("s", "p", vec![]), Err(NameError::NoTable));
    }

    #[test]
    fn a_literal_holds_every_text() {
        assert_eq!(literal("a'b"), "'a''b'");
        assert_eq!(literal("a\\b"), "E'a\\\\b'");
    }
}
