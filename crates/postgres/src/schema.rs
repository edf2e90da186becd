//! The DDL of `sql/`, taken apart into statements.

use crate::subject::TableName;

/// The schema and its tables, one statement after the other.
pub const SCHEMA_SQL: &str = include_str!("../../../sql/schema.sql");

/// The roles, to be run by an administrator; may be run again.
pub const ROLES_SQL: &str = include_str!("../../../sql/roles.sql");

/// Answers a row if the schema has a table or an index named `$1`. The catalog tells everybody, `to_regclass` only those
/// who may use the schema.
pub(crate) const RELATION: &str = "select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'postrider' and c.relname = $1";

const CREATE_TABLE: &str = "create table if not exists ";
const CREATE_INDEX: &str = "create index if not exists ";

/// The statement that creates the schema.
pub(crate) fn create_schema() -> &'static str {
    statement("create schema")
}

/// The statement that creates a table of the schema `postrider`.
pub(crate) fn create_table(table: &str) -> &'static str {
    statement(&format!("{CREATE_TABLE}postrider.{table} ("))
}

/// The indexes of the schema that are made beside their tables.
pub(crate) fn indexes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |statement: &'static str| {
        let (name, _) = statement.strip_prefix(CREATE_INDEX)?.split_once(' ')?;
        Some((name, statement))
    };
    statements().filter_map(named)
}

/// An outbox table of another name, in one line.
pub(crate) fn create_outbox(table: &TableName) -> String {
    let lines = create_table("outbox").lines().map(|line| line.split("--").next().unwrap_or_default());
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let columns = words.join(" ").replacen(&format!("{CREATE_TABLE}postrider.outbox"), "", 1);
    format!("create table {table}{columns}")
}

fn statements() -> impl Iterator<Item = &'static str> {
    paragraphs(SCHEMA_SQL)
}

/// The paragraphs of a script that are statements, behind their comments and without their last semicolons.
pub(crate) fn paragraphs(script: &'static str) -> impl Iterator<Item = &'static str> {
    script.split("\n\n").map(str::trim).filter_map(|paragraph| {
        let start = paragraph.lines().take_while(|line| line.starts_with("--")).map(|l| l.len() + 1).sum();
        paragraph.get(start..)?.strip_suffix(';')
    })
}

/// The one that begins so.
fn statement(beginning: &str) -> &'static str {
    let mut found = statements().filter(|statement| statement.starts_with(beginning));
    match (found.next(), found.next()) {
        (Some(statement), None) => statement,
        _ => panic!("schema.sql has exactly one statement that begins {beginning:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_its_statement() {
        assert_eq!(create_schema(), "create schema if not exists postrider");
        for table in ["outbox", "command", "relay", "quarantine"] {
            assert!(create_table(table).ends_with(')'), "{table}");
        }
        let indexes: Vec<_> = indexes().map(|(name, _)| name).collect();
        assert_eq!(indexes, ["quarantine_undelivered", "quarantine_released", "quarantine_message_id"]);
    }

    #[test]
    fn an_outbox_of_another_name_is_one_line() {
        let statement = create_outbox(&"shop.\"Events\"".parse().expect("a table name"));
        assert!(statement.starts_with("create table shop.\"Events\" ( id uuid primary key"), "{statement}");
        assert!(statement.ends_with("content_type text )") && !statement.contains('\n'), "{statement}");
    }
}
