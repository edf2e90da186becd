//! What a refusal by the server means: the SQLSTATE decides (PostgreSQL manual, "PostgreSQL Error Codes").

use crate::error::{Error, Reason, Stop};
use crate::server::Server;
use crate::subject::quoted;

/// What the session was doing, which decides the cure of 42501.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Logging in for SQL.
    Connect,
    /// Logging in for replication; or using a slot.
    Replicate,
    /// Reading and writing in the schema `postrider`.
    Relay,
    /// Looking at the quarantine, and asking the relay, as a person does.
    Operate,
    /// Creating objects; what one takes beside the database's own right is found out by [`crate::init`].
    Create,
    /// Looking into the inbox, as a person does.
    SeeInbox,
    /// Letting a message in the inbox be handled afresh, as a person does.
    ChangeInbox,
    /// Calling the inbox's functions.
    CallInbox,
}

/// Classifies a failure of tokio-postgres.
pub(crate) fn sql(what: &str, doing: Doing, error: &tokio_postgres::Error, server: &Server) -> Error {
    match error.as_db_error() {
        Some(refusal) => refused(what, doing, refusal.code().code(), refusal.message(), server),
        None if chain(error).contains("password missing") => {
            refused(what, doing, "28P01", "the server asks for a password and none is configured", server)
        }
        None => Error::Outage(format!("{what}: {}", chain(error))),
    }
}

/// Classifies an error message of the server by its SQLSTATE.
pub(crate) fn refused(what: &str, doing: Doing, code: &str, message: &str, server: &Server) -> Error {
    let role = quoted(&server.user);
    let said = format!("{what}: {message} (SQLSTATE {code})");
    let (reason, why, cure) = match code {
        "55006" => return Error::Standby { pid: None },
        "28P01" => (
            Reason::Password,
            "the password in postgres.url or postgres.password_file is not the role's".to_owned(),
            vec![format!("alter role {role} password '<the password that is configured>'")],
        ),
        "28000" if message.contains("pg_hba.conf") => (
            Reason::Login,
            format!(
                "pg_hba.conf lets nobody in this way; add a line such as \"host {} {} samenet scram-sha-256\" \
                 and reload",
                server.database, server.user
            ),
            vec!["select pg_reload_conf()".to_owned()],
        ),
        "28000" if message.contains("not permitted to log in") => {
            (Reason::Login, "the role has no LOGIN".to_owned(), vec![format!("alter role {role} login")])
        }
        "28000" => (
            Reason::Login,
            "the role does not exist, or may not log in".to_owned(),
            vec![format!(
                "create role {role} login replication password '<the password that is configured>'"
            )],
        ),
        "3D000" => (
            Reason::NoDatabase,
            "the database in postgres.url does not exist".to_owned(),
            vec![format!("create database {}", quoted(&server.database)), "postrider init".to_owned()],
        ),
        "42501" => (Reason::Rights, lacking(doing, &server.user), rights(doing, server)),
        // Undefined table, schema, column.
        "42P01" | "3F000" | "42703" if matches!(doing, Doing::Relay | Doing::Operate) => (
            Reason::NoSchema,
            "the schema postrider is not complete; init creates what is missing".to_owned(),
            vec!["postrider init".to_owned()],
        ),
        _ => return Error::Outage(said),
    };
    Stop { reason, what: said, why, cure }.into()
}

fn lacking(doing: Doing, role: &str) -> String {
    match doing {
        Doing::Connect => format!("role {role} may not connect to the database"),
        Doing::Replicate => format!("role {role} may not replicate; the attribute is not inherited"),
        Doing::Relay => format!("role {role} lacks a right in the schema postrider"),
        Doing::Operate => format!(
            "role {role} is no operator of the relay; roles.sql makes the group and gives it its rights, in each \
             database anew"
        ),
        Doing::Create => format!("role {role} may not create this; run it as the database's owner, or grant"),
        Doing::SeeInbox => format!("role {role} may not read the inbox"),
        Doing::ChangeInbox => format!("role {role} may not change the inbox"),
        Doing::CallInbox => format!("role {role} is no consumer of the inbox"),
    }
}

fn rights(doing: Doing, server: &Server) -> Vec<String> {
    let role = quoted(&server.user);
    match doing {
        Doing::Connect => {
            vec![format!("grant connect on database {} to {role}", quoted(&server.database))]
        }
        Doing::Replicate => vec![format!("alter role {role} replication")],
        Doing::Relay => relay_grants(&role),
        Doing::Operate => vec![format!("grant postrider_operator to {role}")],
        Doing::Create => vec![format!("grant create on database {} to {role}", quoted(&server.database))],
        Doing::SeeInbox => inbox_grants(&role),
        Doing::ChangeInbox => {
            let mut grants = inbox_grants(&role);
            grants.push(format!("grant update on postrider.inbox to {role}"));
            grants
        }
        Doing::CallInbox => vec![format!("grant postrider_consumer to {role}")],
    }
}

/// What it takes to read the inbox, which its consumers cannot; `role` is quoted.
fn inbox_grants(role: &str) -> Vec<String> {
    vec![
        format!("grant usage on schema postrider to {role}"),
        format!("grant select on postrider.inbox to {role}"),
    ]
}

/// The rights that `roles.sql` gives to the relay; `role` is quoted.
pub(crate) fn relay_grants(role: &str) -> Vec<String> {
    vec![
        format!("grant usage on schema postrider to {role}"),
        format!("grant select, insert, update, delete on postrider.relay to {role}"),
        format!("grant select on postrider.command to {role}"),
        format!("grant select, insert, update on postrider.quarantine to {role}"),
    ]
}

/// The message and the SQLSTATE of pgwire-replication's text, whose end is fixed: `… (SQLSTATE 42704)`.
pub(crate) fn sqlstate(text: &str) -> Option<(&str, &str)> {
    let (message, rest) = text.rsplit_once(" (SQLSTATE ")?;
    let code = rest.strip_suffix(')')?;
    (code.len() == 5).then_some((message, code))
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sqlstate_is_the_end_of_the_text() {
        for (text, expected) in [
            ("server error: x (SQLSTATE 42704)", Some(("server error: x", "42704"))),
            ("x (SQLSTATE 1) (SQLSTATE 55006)", Some(("x (SQLSTATE 1)", "55006"))),
            ("x (SQLSTATE 5500)", None),
            ("x SQLSTATE 55006", None),
        ] {
            assert_eq!(sqlstate(text), expected, "{text}");
        }
    }

    #[test]
    fn the_sqlstate_decides_between_stop_standby_and_outage() {
        let server = Server::parse("postgres://u:hunter2@h/d").expect("a good URL");
        for (code, expected) in [
            ("28P01", Some(Reason::Password)),
            ("28000", Some(Reason::Login)),
            ("3D000", Some(Reason::NoDatabase)),
            ("42501", Some(Reason::Rights)),
            ("57P03", None),
            ("53300", None),
            ("57P01", None),
            ("08006", None),
        ] {
            match (refused("connect", Doing::Replicate, code, "m", &server), expected) {
                (Error::Stop(stop), Some(reason)) => {
                    assert_eq!(stop.reason, reason);
                    assert!(!stop.cure.is_empty() && !stop.to_string().contains("hunter2"), "{stop}");
                }
                (Error::Outage(text), None) => assert_eq!(text, format!("connect: m (SQLSTATE {code})")),
                (error, _) => panic!("{code}: {error}"),
            }
        }
        assert!(matches!(
            refused("x", Doing::Replicate, "55006", "m", &server),
            Error::Standby { pid: None }
        ));
    }
}
