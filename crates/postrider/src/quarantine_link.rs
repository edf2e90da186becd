//! The relay's tie to the quarantine table: one piece of work at a time, on a connection of the session.
//!
//! Invariant: work of an ended session is dropped with its connection, committed or not; the next session reads
//! the table anew.

use std::pin::Pin;
use std::sync::Arc;

use postrider_postgres::{Error, Quarantine, Server, Subject};
use postrider_relay::quarantine::{Done, Work, WorkId};

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a piece of work hands back: the connection, if it is still good, and what became of it.
struct Outcome {
    connection: Option<Quarantine>,
    done: Result<Done, Error>,
}

/// The tie to the quarantine.
pub(crate) struct QuarantineLink {
    server: Server,
    subject: Subject,
    /// The walsender of the session, while there is one.
    session: Option<i32>,
    connection: Option<Quarantine>,
    doing: Option<(WorkId, Pending<Outcome>)>,
}

impl QuarantineLink {
    pub(crate) fn new(server: Server, subject: Subject) -> Self {
        Self { server, subject, session: None, connection: None, doing: None }
    }

    /// A session begins.
    pub(crate) fn begin(&mut self, walsender_pid: i32) {
        self.end();
        self.session = Some(walsender_pid);
    }

    /// The session is over.
    pub(crate) fn end(&mut self) {
        (self.session, self.connection, self.doing) = (None, None, None);
    }

    /// Begins a piece of work, which [`QuarantineLink::next`] will end; without a session it is for nothing.
    pub(crate) fn start(&mut self, id: WorkId, work: Arc<Work>) {
        let Some(walsender_pid) = self.session else { return };
        let (server, subject, connection) =
            (self.server.clone(), self.subject.clone(), self.connection.take());
        let doing = async move {
            let mut connection = match connection {
                Some(connection) => connection,
                None => match Quarantine::connect(&server, &subject, walsender_pid).await {
                    Ok(connection) => connection,
                    Err(error) => return Outcome { connection: None, done: Err(error) },
                },
            };
            let done = connection.perform(&work).await;
            Outcome { connection: done.is_ok().then_some(connection), done }
        };
        self.doing = Some((id, Box::pin(doing)));
    }

    /// What became of the work under way. Cancel safe.
    pub(crate) async fn next(&mut self) -> (WorkId, Result<Done, Error>) {
        let Some((id, doing)) = &mut self.doing else { return std::future::pending().await };
        let (id, Outcome { connection, done }) = (*id, doing.await);
        (self.doing, self.connection) = (None, connection);
        (id, done)
    }
}
