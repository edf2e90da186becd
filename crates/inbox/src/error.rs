//! What can go wrong, by what the caller does about it.

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
    /// The same, where sqlx was asked.
    #[cfg(feature = "sqlx")]
    #[error("ask the inbox: {0}")]
    Sqlx(#[source] sqlx::Error),
}

impl Error {
    /// What the server's answer is by its SQLSTATE, where that is of interest here.
    fn by_code<'a>(
        code: &str,
        message: &str,
        more: impl IntoIterator<Item = Option<&'a str>>,
    ) -> Option<Self> {
        let known = match code {
            "PR001" => Self::NotReadCommitted,
            "PR002" => Self::StaleFence,
            "PR003" => Self::InsideWindow,
            // Character not in repertoire; untranslatable character.
            "PR004" | "22021" | "22P05" => Self::Argument,
            "PR005" => Self::TwoPhase,
            // Undefined function; invalid schema name; insufficient privilege.
            "42883" | "3F000" | "42501" => Self::NotInstalled,
            _ => return None,
        };
        let text = more.into_iter().flatten().fold(message.to_owned(), |text, more| text + "; " + more);
        Some(known(text))
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let known = error.as_db_error().and_then(|answer| {
            Self::by_code(answer.code().code(), answer.message(), [answer.detail(), answer.hint()])
        });
        known.unwrap_or(Self::Postgres(error))
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let answer = error
            .as_database_error()
            .and_then(|answer| answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>());
        let known = answer.and_then(|answer| {
            Self::by_code(answer.code(), answer.message(), [answer.detail(), answer.hint()])
        });
        known.unwrap_or(Self::Sqlx(error))
    }
}
