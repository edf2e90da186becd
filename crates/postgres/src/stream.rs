//! The slot stream: pgwire-replication on one session, as [`Frame`]s in and a [`Watermark`] out.
//!
//! It never acknowledges anything but a watermark, and it starts where the slot stands (0/0).

use std::time::Duration;

use futures_util::FutureExt;
use pgwire_replication::{PgWireError, ReplicationClient, ReplicationConfig, ReplicationEvent};
use postrider_relay::{Frame, Lsn, Watermark};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::admin::{Admin, LOOK_LIMIT};
use crate::bridge::{Bridge, PORT};
use crate::error::{Error, Reason, Stop};
use crate::failure::{self, Doing, sqlstate};
use crate::inspect::Inspection;
use crate::record;
use crate::silence::Silence;
use crate::subject::{Subject, double_quoted, quoted};
use crate::wire::Endpoint;

/// A started stream, and its hold on the slot. Dropped without [`Self::close`], it cuts the session.
pub struct SlotStream {
    client: ReplicationClient,
    /// Carries an encrypted session; empty for a plain one.
    bridge: JoinSet<()>,
    admin: Admin,
    subject: Subject,
    walsender_pid: i32,
    /// Why the session ended, until [`Self::next`] has asked the server what that means.
    ended: Option<PgWireError>,
    silence: Silence,
}

/// Pins how values are printed, whatever the role or the server prefer; ours win over the user's.
const OPTIONS: &str = "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 \
                       -c bytea_output=hex -c lc_monetary=C -c lc_numeric=C -c statement_timeout=0";

/// Events between pgwire's task and ours; each may be large, so that this is small.
const BUFFER_EVENTS: usize = 64;

/// From Postgres' epoch, 2000-01-01, back to that of Unix, in microseconds.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

impl SlotStream {
    /// Opens a replication session on the admin connection's server and starts the slot where it stands.
    ///
    /// `report_every`: how often the server hears of us, at most a quarter of its `wal_sender_timeout`.
    /// Call [`Admin::check`] before. Every step has a limit.
    pub async fn connect(
        admin: &Admin,
        subject: &Subject,
        report_every: Duration,
    ) -> Result<SlotStream, Error> {
        let server_limit = admin.inspect(subject).await?.wal_sender_timeout;
        let report_every = server_limit.map_or(report_every, |limit| report_every.min(limit / 4));
        let limit = admin.0.server.connect_limit;
        let opened = timeout(limit, open(admin, subject, report_every)).await;
        let (client, bridge, walsender_pid) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(e)) => return Err(explain(admin, subject, &e).await),
            Err(_) => return Err(Error::Outage("start the slot stream: no answer in time".to_owned())),
        };
        admin.execute("record the start", Doing::Relay, record::OPENED, subject.slot()).await?;
        Ok(SlotStream {
            client,
            bridge,
            admin: admin.clone(),
            subject: subject.clone(),
            walsender_pid,
            ended: None,
            silence: Silence::new(server_limit),
        })
    }

    /// The server's process for this session: `active_pid` of the slot while it is ours.
    pub fn walsender_pid(&self) -> i32 {
        self.walsender_pid
    }

    /// The next frame, however long it takes: an idle server says nothing. Cancel safe.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        let mut listening = self.silence.listen();
        loop {
            if let Some(ended) = &self.ended {
                return Err(explain(&self.admin, &self.subject, ended).await);
            }
            match self.client.recv().await {
                Ok(Some(event)) => {
                    listening.heard();
                    if let Some(frame) = frame(event) {
                        return Ok(frame);
                    }
                }
                Ok(None) => self.ended = Some(PgWireError::Task("the session has ended".to_owned())),
                Err(e) => self.ended = Some(e),
            }
        }
    }

    /// A frame that is there already. None also when the session has ended: [`Self::next`] says why.
    pub fn try_next(&mut self) -> Option<Frame> {
        while self.ended.is_none() {
            match self.client.recv().now_or_never()? {
                Ok(Some(event)) => {
                    self.silence.listen().heard();
                    if let Some(frame) = frame(event) {
                        return Some(frame);
                    }
                }
                Ok(None) => self.ended = Some(PgWireError::Task("the session has ended".to_owned())),
                Err(e) => self.ended = Some(e),
            }
        }
        None
    }

    /// Acknowledges everything below the watermark; sent within `report_every`, never lowered.
    pub fn report(&self, watermark: Watermark) {
        self.client.update_applied_lsn(pgwire_replication::Lsn::from_u64(watermark.lsn().0));
    }

    /// The acknowledgement that was last written to the server; 0/0 before the first.
    pub fn sent(&self) -> Lsn {
        Lsn(self.client.metrics().last_applied_lsn().as_u64())
    }

    /// How long nothing has come although frames were asked for.
    pub fn silence(&self) -> Duration {
        self.silence.so_far()
    }

    /// Whether the link is dead: the server has sent what did not arrive, and for as long as its own
    /// `wal_sender_timeout` nothing has, while frames were asked for. For after each [`Admin::check`].
    ///
    /// Only for a role with `pg_read_all_stats`; without it [`Admin::check`] sees the dead link once the server
    /// has given it up. Silence alone says nothing: the server speaks up only when it has not heard from *us* for half of
    /// its `wal_sender_timeout`, and it hears from us every `report_every`.
    pub fn silent(&self, seen: &Inspection) -> Option<Error> {
        let sent = seen.slot.as_ref().and_then(|slot| slot.sent_lsn)?;
        let arrived = Lsn(self.client.metrics().last_wal_end().as_u64());
        (sent > arrived && self.silence.is_too_long()).then(|| {
            Error::Outage(format!("the server has sent up to {sent}, but nothing came since {arrived}"))
        })
    }

    /// Sees `last` sent, ends the session, waits until the slot is free, and records where it stands.
    ///
    /// Returns that position, or None if it could not be seen within the limit; the report may have
    /// arrived all the same.
    pub async fn close(mut self, last: Option<Watermark>, limit: Duration) -> Option<Lsn> {
        if let Some(watermark) = last {
            self.report(watermark);
        }
        timeout(limit, self.leave(last)).await.ok().flatten()
    }

    async fn leave(&mut self, last: Option<Watermark>) -> Option<Lsn> {
        while last.is_some_and(|watermark| self.sent() < watermark.lsn()) && self.client.is_running() {
            while self.try_next().is_some() {}
            sleep(Duration::from_millis(10)).await;
        }
        self.client.stop();
        // Frames that nobody wants any more would block the stop.
        while self.client.is_running() {
            while self.try_next().is_some() {}
            sleep(Duration::from_millis(5)).await;
        }
        while self.bridge.join_next().await.is_some() {}
        loop {
            match self.record_drain().await {
                Ok(Some(stands)) => return Some(stands),
                Ok(None) => sleep(Duration::from_millis(20)).await,
                Err(e) => {
                    tracing::warn!("failed to record where the slot stands: {e}");
                    return None;
                }
            }
        }
    }

    /// None while the slot is still held.
    async fn record_drain(&self) -> Result<Option<Lsn>, Error> {
        let seen = self.admin.inspect(&self.subject).await?;
        let Some(facts) = seen.slot else { return Ok(None) };
        match facts.active_pid {
            Some(pid) if pid == self.walsender_pid => return Ok(None),
            // Another relay has it already; where we left it is below where it stands.
            Some(_) => return Ok(facts.confirmed_flush_lsn),
            None => {}
        }
        self.admin.batch("record the drain", Doing::Relay, &record::drained(self.subject.slot())).await?;
        Ok(facts.confirmed_flush_lsn)
    }
}

impl Drop for SlotStream {
    fn drop(&mut self) {
        // Without this its task would live on, and end only when the server lets it write.
        self.client.abort();
    }
}

/// Connects, learns the walsender's pid, and starts the slot.
async fn open(
    admin: &Admin,
    subject: &Subject,
    report_every: Duration,
) -> Result<(ReplicationClient, JoinSet<()>, i32), PgWireError> {
    let server = &admin.0.server;
    let (host, port, bridge) = match &admin.0.endpoint {
        endpoint if endpoint.encrypted() => {
            let wire =
                endpoint.open(server.tls.as_ref()).await.map_err(|e| PgWireError::Tls(format!("{e:?}")))?;
            let bridge = Bridge::open()?;
            let folder = bridge.folder().display().to_string();
            (folder, PORT, bridge.carry(wire, server.connect_limit))
        }
        Endpoint::Unix { folder, port } => (folder.display().to_string(), *port, JoinSet::new()),
        Endpoint::Tcp { address, .. } => (address.ip().to_string(), address.port(), JoinSet::new()),
    };
    let password = server.password.clone().unwrap_or_default();
    let publication = double_quoted(subject.publication());
    let mut config = ReplicationConfig::new(
        host,
        server.user.clone(),
        password,
        server.database.clone(),
        subject.slot(),
        publication.as_str(),
    )
    .with_port(port)
    .with_status_interval(report_every)
    .with_wakeup_interval(report_every)
    .with_buffer_size(BUFFER_EVENTS)
    .with_application_name(server.application_name.clone())
    .with_options(server.options_with(OPTIONS));
    config.start_lsn = pgwire_replication::Lsn::ZERO;
    let mut client = ReplicationClient::connect_gated(config).await?;
    let rows = client.simple_query("select pg_catalog.pg_backend_pid()").await?;
    let pid = rows
        .first()
        .and_then(|row| row.first()?.as_deref())
        .and_then(|text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok());
    let pid = pid.ok_or_else(|| PgWireError::Protocol("pg_backend_pid() gave no number".to_owned()))?;
    client.start().await?;
    client.wait_started().await?;
    Ok((client, bridge, pid))
}

fn frame(event: ReplicationEvent) -> Option<Frame> {
    let lsn = |lsn: pgwire_replication::Lsn| Lsn(lsn.as_u64());
    Some(match event {
        ReplicationEvent::KeepAlive { wal_end, reply_requested, .. } => {
            Frame::Keepalive { wal_end: lsn(wal_end), reply_requested }
        }
        ReplicationEvent::Begin { final_lsn, commit_time_micros, .. } => Frame::Begin {
            commit_lsn: lsn(final_lsn),
            committed_us: commit_time_micros.saturating_add(POSTGRES_EPOCH_US),
        },
        ReplicationEvent::XLogData { data, .. } => Frame::Change(data),
        ReplicationEvent::Commit { lsn: commit_lsn, end_lsn, .. } => {
            Frame::Commit { commit_lsn: lsn(commit_lsn), end_lsn: lsn(end_lsn) }
        }
        ReplicationEvent::Message { transactional, .. } => Frame::Message { transactional },
        // Only with a stop position, which we never set.
        ReplicationEvent::StoppedAt { .. } => return None,
    })
}

/// What the end of a session means: the SQLSTATE where it is clear, else the server's own word.
async fn explain(admin: &Admin, subject: &Subject, ended: &PgWireError) -> Error {
    let text = ended.to_string();
    let outage = || Error::Outage(format!("stream the slot {}: {text}", subject.slot()));
    let (message, code) = match ended {
        PgWireError::Server(said) => match sqlstate(said) {
            Some(parts) => parts,
            None => return outage(),
        },
        // The session ended without a word, or its word was lost: the server knows.
        PgWireError::Task(_) | PgWireError::Internal(_) => (text.as_str(), ""),
        _ => return outage(),
    };
    if matches!(code, "28P01" | "28000" | "3D000" | "42501") {
        return failure::refused("start the slot stream", Doing::Replicate, code, message, &admin.0.server);
    }
    let seen = match timeout(LOOK_LIMIT, admin.inspect(subject)).await {
        Ok(Ok(seen)) if !seen.in_recovery => seen,
        _ => return outage(),
    };
    if let Err(stop) = seen.verdict(subject) {
        return stop.into();
    }
    match code {
        "55006" => Error::Standby { pid: seen.slot.and_then(|slot| slot.active_pid) },
        // The slot is there, so that it is the publication that is not: at the slot's place in history.
        "42704" => Stop {
            reason: Reason::PublicationYounger,
            what: format!("the slot {} cannot read on: {message}", subject.slot()),
            why: format!(
                "the publication {} is younger than the WAL that the slot still reads; a new slot begins at the \
                 end of the WAL, so events that were not sent are lost to the relay: insert those rows again",
                quoted(subject.publication())
            ),
            cure: vec!["postrider slot drop --yes".to_owned(), "postrider slot create".to_owned()],
        }
        .into(),
        _ => outage(),
    }
}
