//! The relay's tie to Postgres: one replication session at a time, and the admin connection that checks it.
//!
//! Invariant: at most one attempt, one session and one check are under way, and each has an end of its own.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use postrider_postgres::{Admin, Error, Inspection, Server, SlotStream, Stop, Subject};
use postrider_relay::{Backoff, CheckId, Checked, Frame, Lsn, Watermark};

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What happened at Postgres.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The slot streams: a session begins.
    Connected {
        /// The walsender's process at the server.
        walsender_pid: i32,
        /// The server.
        endpoint: String,
    },
    /// A frame of the session.
    Frame(Frame),
    /// There is no session; another attempt follows by itself.
    Lost(Loss),
    /// A check has ended.
    Checked(CheckId, Checked, Option<Box<Inspection>>),
    /// Only a person can mend this.
    Stop(Box<Stop>),
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Another relay has the slot.
    Standby { pid: Option<i32> },
    /// Postgres cannot be reached, or does not want us now.
    Outage(String),
}

enum Link {
    Waiting(Instant),
    Connecting(Pending<Result<Session, Error>>),
    Streaming(Box<SlotStream>),
}

struct Session {
    admin: Admin,
    stream: Box<SlotStream>,
}

/// What a check hands back: the connection, if it is still good, and what it saw.
struct Look {
    admin: Option<Admin>,
    seen: Result<Inspection, Error>,
}

/// How soon a standby asks again whether the slot is free.
const STANDBY_EVERY: Duration = Duration::from_millis(400);

/// A stream that has said nothing for so long may be cut off without a word. On an idle one that is no fault, so
/// it takes unanswered checks to believe it.
const SILENT_AFTER: Duration = Duration::from_secs(8);
/// How soon a report is on its way. The core decides what is reported and when; the client only passes it on,
/// and a drain waits for it.
const STATUS_EVERY: Duration = Duration::from_millis(200);

/// The tie to Postgres.
pub(crate) struct SlotLink {
    server: Server,
    subject: Subject,
    report_every: Duration,
    link: Link,
    admin: Option<Admin>,
    check: Option<(CheckId, Pending<Look>)>,
    /// Since when no check has been answered.
    unanswered: Option<Instant>,
    backoff: Backoff,
    failures: u32,
    random: fastrand::Rng,
}

impl SlotLink {
    /// Nothing is connected; the first [`SlotLink::next`] begins.
    pub(crate) fn new(server: Server, subject: Subject, report_every: Duration) -> Self {
        Self {
            server,
            subject,
            report_every,
            link: Link::Waiting(Instant::now()),
            admin: None,
            check: None,
            unanswered: None,
            // An outage of the database is short or long: never wait much longer than a restart takes.
            backoff: Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5), jitter: 0.2 },
            failures: 0,
            random: fastrand::Rng::new(),
        }
    }

    /// What happens next; frames only if `accepting`. Cancel safe.
    pub(crate) async fn next(&mut self, accepting: bool) -> Turn {
        loop {
            let link = async {
                match &mut self.link {
                    Link::Waiting(until) => {
                        tokio::time::sleep_until((*until).into()).await;
                        Step::Connect
                    }
                    Link::Connecting(attempt) => Step::Attempted(attempt.await),
                    Link::Streaming(stream) if accepting => Step::Frame(stream.next().await),
                    Link::Streaming(_) => std::future::pending().await,
                }
            };
            let check = async {
                match &mut self.check {
                    Some((id, look)) => (*id, look.await),
                    None => std::future::pending().await,
                }
            };
            let step = tokio::select! {
                // A check may stop us, so it comes before new frames.
                biased;
                (id, look) = check => Step::Looked(id, Box::new(look)),
                step = link => step,
            };
            match step {
                Step::Connect => self.connect(),
                Step::Attempted(Ok(session)) => return self.connected(session),
                Step::Frame(Ok(frame)) => return Turn::Frame(frame),
                Step::Attempted(Err(error)) | Step::Frame(Err(error)) => return self.failed(error),
                Step::Looked(id, look) => {
                    if let Some(turn) = self.looked(id, *look) {
                        return turn;
                    }
                }
            }
        }
    }

    /// A frame that is there already.
    pub(crate) fn try_next(&mut self) -> Option<Turn> {
        let Link::Streaming(stream) = &mut self.link else { return None };
        stream.try_next().map(Turn::Frame)
    }

    /// Begins a check, which [`SlotLink::next`] will end; without a session there is nothing to check.
    pub(crate) fn check(&mut self, id: CheckId) {
        let Link::Streaming(stream) = &self.link else { return };
        let (server, subject, pid) = (self.server.clone(), self.subject.clone(), stream.walsender_pid());
        let admin = self.admin.take();
        let look = async move {
            let admin = match admin {
                Some(admin) => admin,
                None => match Admin::connect(&server).await {
                    Ok(admin) => admin,
                    Err(error) => return Look { admin: None, seen: Err(error) },
                },
            };
            let seen = admin.check(&subject, Some(pid)).await;
            // A connection that failed once is not trusted again.
            let admin = if matches!(seen, Err(Error::Outage(_))) { None } else { Some(admin) };
            Look { admin, seen }
        };
        self.check = Some((id, Box::pin(look)));
    }

    pub(crate) fn report(&self, watermark: Watermark) {
        if let Link::Streaming(stream) = &self.link {
            stream.report(watermark);
        }
    }

    /// Ends the session without a last word; another attempt follows.
    pub(crate) fn leave(&mut self, why: &str) -> Turn {
        self.failed(Error::Outage(why.to_owned()))
    }

    /// Ends the session: `last` is sent, and where the slot stands is recorded, unless time runs out. Returns
    /// where it stands.
    pub(crate) async fn close(self, last: Option<Watermark>, limit: Duration) -> Option<Lsn> {
        match self.link {
            Link::Streaming(stream) => stream.close(last, limit).await,
            Link::Waiting(_) | Link::Connecting(_) => None,
        }
    }

    fn connect(&mut self) {
        let (server, subject, every) =
            (self.server.clone(), self.subject.clone(), self.report_every.min(STATUS_EVERY));
        let attempt = async move {
            let admin = Admin::connect(&server).await?;
            let seen = admin.check(&subject, None).await?;
            if let Some(pid) = seen.slot.as_ref().and_then(|slot| slot.active_pid) {
                return Err(Error::Standby { pid: Some(pid) });
            }
            let stream = SlotStream::connect(&admin, &subject, every).await?;
            Ok(Session { admin, stream: Box::new(stream) })
        };
        self.link = Link::Connecting(Box::pin(attempt));
    }

    fn connected(&mut self, Session { admin, stream }: Session) -> Turn {
        let (walsender_pid, endpoint) = (stream.walsender_pid(), admin.endpoint());
        self.admin = Some(admin);
        self.check = None;
        self.unanswered = None;
        self.failures = 0;
        self.link = Link::Streaming(stream);
        Turn::Connected { walsender_pid, endpoint }
    }

    fn failed(&mut self, error: Error) -> Turn {
        self.check = None;
        let (wait, loss) = match error {
            Error::Stop(stop) => return Turn::Stop(stop),
            Error::Standby { pid } => (STANDBY_EVERY, Loss::Standby { pid }),
            Error::Outage(outage) => {
                self.failures = self.failures.saturating_add(1);
                (self.backoff.wait(self.failures, &mut self.random), Loss::Outage(outage))
            }
        };
        self.link = Link::Waiting(Instant::now() + wait);
        Turn::Lost(loss)
    }

    fn looked(&mut self, id: CheckId, look: Look) -> Option<Turn> {
        self.check = None;
        self.admin = look.admin;
        let Link::Streaming(stream) = &self.link else { return None };
        let seen = match look.seen {
            Ok(seen) => seen,
            Err(Error::Stop(stop)) => return Some(Turn::Stop(stop)),
            Err(error) if error.is_shutdown() => return Some(Turn::Checked(id, Checked::ShuttingDown, None)),
            Err(error) if error.is_session_over() => return Some(self.failed(error)),
            Err(Error::Standby { .. } | Error::Outage(_)) => {
                let unanswered = self.unanswered.get_or_insert_with(Instant::now).elapsed();
                if unanswered.min(stream.silence()) > SILENT_AFTER {
                    return Some(
                        self.leave(
                            "neither the slot stream nor the admin connection has answered for a while",
                        ),
                    );
                }
                return Some(Turn::Checked(id, Checked::Unreachable, None));
            }
        };
        self.unanswered = None;
        Some(match stream.silent(&seen) {
            Some(error) => self.failed(error),
            None => Turn::Checked(id, Checked::Sound, Some(Box::new(seen))),
        })
    }
}

enum Step {
    Connect,
    Attempted(Result<Session, Error>),
    Frame(Result<Frame, Error>),
    Looked(CheckId, Box<Look>),
}
