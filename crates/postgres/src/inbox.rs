//! What `postrider init --inbox` makes in a consumer's database, which needs neither publication nor slot.
//!
//! A paragraph of `sql/inbox.sql` is one object together with its rights, so that a function is never there
//! without them.

use crate::admin::Admin;
use crate::error::Error;
use crate::failure::Doing;
use crate::init::{Planned, Progress};
use crate::schema::paragraphs;

const INBOX_SQL: &str = include_str!("../../../sql/inbox.sql");

/// One object, and how to see whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    /// What it is, such as `table postrider.inbox`.
    label: String,
    name: &'static str,
    /// Answers a row if the object named `$1` is there.
    there: &'static str,
    sql: &'static str,
}

impl Admin {
    /// Every object of the inbox in order, for `--dry-run`.
    pub async fn inbox_plan(&self) -> Result<Vec<Planned>, Error> {
        let mut plan = Vec::new();
        for object in objects() {
            let there = self.query("look what is there", Doing::Relay, object.there, &[object.name]).await?;
            plan.push(Planned {
                object: object.label,
                present: !there.is_empty(),
                sql: object.sql.to_owned(),
            });
        }
        Ok(plan)
    }

    /// Creates what is missing of the inbox and changes nothing that is there.
    pub async fn init_inbox(&self, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<(), Error> {
        for planned in self.inbox_plan().await? {
            self.make(planned, tell).await?;
        }
        Ok(())
    }
}

/// The objects of the script, in its order.
fn objects() -> impl Iterator<Item = Object> {
    paragraphs(INBOX_SQL).filter(|sql| !matches!(*sql, "begin" | "commit")).map(|sql| {
        object(sql).unwrap_or_else(|| panic!("inbox.sql has an object that init does not know: {sql}"))
    })
}

/// How a statement begins, what it makes, and how to see whether that is there. The name follows.
const KINDS: [(&str, &str, &str); 6] = [
    ("create schema if not exists ", "schema ", "select from pg_namespace where nspname = $1"),
    ("create table if not exists ", "table ", "select where to_regclass($1) is not null"),
    (
        "create index if not exists ",
        "index postrider.",
        "select where to_regclass('postrider.' || $1) is not null",
    ),
    ("create or replace function ", "function ", "select where to_regproc($1) is not null"),
    (CREATE_ROLE, "role ", "select from pg_roles where rolname = $1"),
    (
        "grant usage on schema postrider to ",
        "usage of the schema for ",
        // The role and the schema may be missing as well.
        "select from pg_roles r, pg_namespace n where r.rolname = $1 and n.nspname = 'postrider'
         and has_schema_privilege(r.oid, n.oid, 'usage')",
    ),
];

/// There is no `create role if not exists`.
const CREATE_ROLE: &str = "create role ";

fn object(sql: &'static str) -> Option<Object> {
    let body = if sql.starts_with("do ") { &sql[sql.find(CREATE_ROLE)?..] } else { sql };
    KINDS.iter().find_map(|(beginning, label, there)| {
        let name = body.strip_prefix(beginning)?.split([' ', '(', '\n']).next()?;
        Some(Object { label: format!("{label}{name}"), name, there, sql })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_known_and_made_with_its_rights() {
        let names: Vec<_> = objects().map(|object| object.label).collect();
        assert_eq!(
            names[..9],
            [
                "schema postrider",
                "table postrider.inbox",
                "index postrider.inbox_completed",
                "index postrider.inbox_open",
                "table postrider.inbox_sequence",
                "table postrider.inbox_window",
                "role postrider_consumer",
                "usage of the schema for postrider_consumer",
                "function postrider.inbox_check",
            ]
        );
        assert_eq!(names.len(), INBOX_SQL.matches("\ncreate or replace function ").count() + 8);
        for object in objects().filter(|object| object.label.starts_with("function ")) {
            let revoked = format!("revoke execute on function {} from public", object.name);
            assert!(object.sql.contains(&revoked), "{}", object.name);
        }
    }
}
