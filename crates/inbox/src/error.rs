//! What can go wrong, by what the caller does about it.

use tokio_postgres::error::SqlState;

/// Why the inbox gave no verdict; fits "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transaction is not READ COMMITTED (PR001): begin it so.
    #[error("use the inbox: {0}")]
    NotReadCommitted(String),
    /// Another worker has taken the message over, or it is done (PR002): what this worker did may have been
    /// done twice.
    #[error("keep the message: {0}")]
    StaleFence(String),
    /// The rows to be pruned still protect from duplicates (PR003).
    #[error("prune the inbox: {0}")]
    InsideWindow(String),
    /// An argument is missing or out of its range (PR004), or is text that the database cannot hold, such as a
    /// NUL: no retry of this message will help.
    #[error("use the inbox: {0}")]
    Argument(String),
    /// The message is being handled in two phases, and was claimed in one (PR005).
    #[error("claim the message: {0}")]
    TwoPhase(String),
    /// The database has no inbox, or this role may not use it: a person has to run `sql/inbox.sql`, or
    /// `grant postrider_consumer`.
    #[error("reach the inbox: {0}")]
    NotInstalled(String),
    /// The server said a word that this version does not know.
    #[error("understand the inbox: it said {0:?}")]
    Unknown(String),
    /// Anything else of Postgres: lost connections, timeouts.
    #[error("ask the inbox: {0}")]
    Postgres(#[source] tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else { return Self::Postgres(error) };
        let mut text = answer.message().to_owned();
        for more in [answer.detail(), answer.hint()].into_iter().flatten() {
            text.push_str("; ");
            text.push_str(more);
        }
        match answer.code().code() {
            "PR001" => Self::NotReadCommitted(text),
            "PR002" => Self::StaleFence(text),
            "PR003" => Self::InsideWindow(text),
            // Character not in repertoire; untranslatable character.
            "PR004" | "22021" | "22P05" => Self::Argument(text),
            "PR005" => Self::TwoPhase(text),
            code if [
                SqlState::UNDEFINED_FUNCTION,
                SqlState::INVALID_SCHEMA_NAME,
                SqlState::INSUFFICIENT_PRIVILEGE,
            ]
            .iter()
            .any(|known| known.code() == code) =>
            {
                Self::NotInstalled(text)
            }
            _ => Self::Postgres(error),
        }
    }
}
