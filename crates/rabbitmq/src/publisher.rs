//! The public face: a handle on the task that owns the connection.

use std::time::Duration;

use postrider_relay::{Answer, Broker, BrokerLimits, Window};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::outage::Outage;
use crate::settings::Settings;
use crate::supervisor;

/// Publishes windows over one supervised connection, which it brings back for ever.
///
/// Dropping it ends the connection at once; [`close`](Self::close) takes leave of the broker first.
#[derive(Debug)]
pub struct Publisher {
    // Unbounded, and yet small: the relay has at most `lanes` windows out, and each is answered at most twice.
    windows: UnboundedSender<(SessionNumber, Window)>,
    events: UnboundedReceiver<Told>,
    /// The session that the caller believes in; none while it was last told of an outage.
    session: Option<SessionNumber>,
    task: JoinSet<()>,
}

/// Counts connections, so that a window made for one never goes out on the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionNumber(pub(crate) u64);

/// An event, and the session it belongs to.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) session: SessionNumber,
    pub(crate) event: Event,
}

/// What the publisher tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// The connection changed.
    State(State),
    /// The broker's word on a window of the connection that is up. All answers of a connection come before
    /// the [`State::Down`] that ends it, and none after.
    Answer(Answer),
}

/// How the connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Connected, the exchange is there, all lanes are open.
    Ready(BrokerLimits),
    /// Connected, but the broker reads nothing (`connection.blocked`; RabbitMQ manual, "Blocked Connection
    /// Notifications"). Windows that are out stay out, all clocks stand still; [`State::Ready`] or
    /// [`State::Down`] follows.
    Blocked {
        /// The broker's words.
        reason: String,
    },
    /// Not connected: windows that are out are void. Told once for an outage, and again only when an endpoint
    /// gives another reason than last time; so each is worth a line in the log.
    Down(Outage),
}

impl State {
    /// The state in the relay's words.
    pub fn broker(&self) -> Broker {
        match self {
            Self::Ready(limits) => Broker::Ready(*limits),
            Self::Blocked { .. } => Broker::Blocked,
            Self::Down(_) => Broker::Down,
        }
    }
}

impl Publisher {
    /// Begins to connect; the first event says how that went.
    ///
    /// # Panics
    /// Outside a Tokio runtime, and without endpoints or lanes.
    pub fn start(settings: Settings) -> Self {
        assert!(!settings.endpoints.is_empty(), "a publisher needs an endpoint");
        assert!(settings.lanes > 0, "a publisher needs a lane");
        let (windows, handed) = unbounded_channel();
        let (tell, events) = unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(supervisor::supervise(settings, handed, tell));
        Self { windows, events, session: None, task }
    }

    /// Hands a window to a free lane; never blocks. The caller has at most `lanes` windows out: one that is
    /// one too many waits for a lane. While the last told state is [`State::Down`] the window is void.
    pub fn publish(&mut self, window: Window) {
        if let Some(session) = self.session {
            // The task lives as long as this handle; if it panicked, `next` says so.
            let _ = self.windows.send((session, window));
        }
    }

    /// The next event. Cancel safe.
    ///
    /// # Panics
    /// If the task that owns the connection panicked.
    pub async fn next(&mut self) -> Event {
        let Some(told) = self.events.recv().await else {
            match self.task.join_next().await {
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                end => panic!("the publisher's task ended by itself: {end:?}"),
            }
        };
        match &told.event {
            Event::State(State::Ready(_)) => self.session = Some(told.session),
            Event::State(State::Down(_)) => self.session = None,
            Event::State(State::Blocked { .. }) | Event::Answer(_) => {}
        }
        told.event
    }

    /// Takes leave of the broker, within `limit` even if that is blocked or frozen. Windows that are still
    /// out are given up without an answer.
    pub async fn close(mut self, limit: Duration) {
        drop(self.windows);
        // Dropping the set aborts what did not end in time.
        let _ = tokio::time::timeout(limit, self.task.join_next()).await;
    }
}
