//! What `postrider init --inbox` makes in a consumer's database, which needs neither publication nor slot.
//!
//! A paragraph of `sql/inbox.sql` is one object together with its rights, so that a function is never there
//! without them.

use crate::admin::Admin;
use crate::error::Error;
use crate::failure::Doing;
use crate::init::{Needs, Planned, Progress};
use crate::schema::{RELATION, paragraphs};

const INBOX_SQL: &str = include_str!("../../../sql/inbox.sql");

/// One object, and how to see whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    /// What it is, such as `table postrider.inbox`.
    label: String,
    /// Its name, without the schema.
    name: &'static str,
    /// Answers a row if the object named `$1` is there.
    there: &'static str,
    needs: Needs,
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
                needs: object.needs,
            });
        }
        Ok(plan)
    }

    /// Creates what is missing of the inbox, all of it or nothing, and changes nothing that is there.
    pub async fn init_inbox(&self, tell: &mut (dyn FnMut(Progress) + Send)) -> Result<(), Error> {
        let plan = self.inbox_plan().await?;
        self.batch("begin to create the inbox", Doing::Create, "begin").await?;
        for planned in &plan {
            if let Err(error) = self.create(planned).await {
                // What failed is worth more than that; and a session that ends takes its transaction along.
                let _ = self.batch("create no inbox", Doing::Create, "rollback").await;
                return Err(self.explained(error, planned, "postrider init --inbox").await);
            }
        }
        self.batch("create the inbox", Doing::Create, "commit").await?;
        for planned in plan {
            tell(planned.made());
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

/// How a statement begins, what it makes, how to see whether that is there, and what it takes. The name follows.
const KINDS: [(&str, &str, &str, Needs); 6] = [
    (
        "create schema if not exists ",
        "schema ",
        "select from pg_namespace where nspname = $1",
        Needs::Database,
    ),
    ("create table if not exists postrider.", "table postrider.", RELATION, Needs::Schema),
    ("create index if not exists ", "index postrider.", RELATION, Needs::Schema),
    (
        "create or replace function postrider.",
        "function postrider.",
        "select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = 'postrider' and p.proname = $1",
        Needs::Schema,
    ),
    (CREATE_ROLE, "role ", "select from pg_roles where rolname = $1", Needs::Role),
    (
        "grant usage on schema postrider to ",
        "usage of the schema for ",
        // The role and the schema may be missing as well.
        "select from pg_roles r, pg_namespace n where r.rolname = $1 and n.nspname = 'postrider'
         and has_schema_privilege(r.oid, n.oid, 'usage')",
        Needs::Schema,
    ),
];

/// There is no `create role if not exists`.
const CREATE_ROLE: &str = "create role ";

fn object(sql: &'static str) -> Option<Object> {
    let body = if sql.starts_with("do ") { &sql[sql.find(CREATE_ROLE)?..] } else { sql };
    KINDS.into_iter().find_map(|(beginning, label, there, needs)| {
        let name = body.strip_prefix(beginning)?.split([' ', '(', '\n']).next()?;
        Some(Object { label: format!("{label}{name}"), name, there, needs, sql })
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
            let revoked = format!("revoke execute on function postrider.{} from public", object.name);
            assert!(object.sql.contains(&revoked), "{}", object.name);
        }
    }
}
