//! The channels of a connection: those that wait for a window, and the coming and going of the others.
//!
//! Invariant: each lane is a channel that waits here, a window out that is no stray, or a channel that is opened or
//! to be; and there are never more channels than the broker allows.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::FuturesUnordered;
use lapin::{Channel, Connection, ErrorKind};
use tokio::select;

use crate::ending::Lost;
use crate::flight::Flight;
use crate::link::{open_lane, within};
use crate::outage::{Outage, OutageKind};
use crate::settings::Settings;

/// A lane that is refused everything gets a fresh channel, at most one in so long. A quorum queue tells a channel
/// that it is full, and that it has room again when it shrinks below its limit; where the limit was lifted
/// instead, the channel goes on refusing (seen with RabbitMQ 3.10).
const RENEW: Duration = Duration::from_millis(500);
/// So many channels a lane may wait for the broker to close them. One that owes a confirm for a queue without a
/// majority is closed only when the queue has its majority back (seen with RabbitMQ 3.10), and every probe of such
/// a route leaves one behind: rather than gather them, the connection is made anew, which ends them all.
const CLOSING_PER_LANE: usize = 8;

pub(crate) struct Lanes {
    connection: Arc<Connection>,
    /// How many there are.
    count: usize,
    channel_max: usize,
    /// How long a lane may be without a channel.
    patience: Duration,
    free: Vec<Arc<Channel>>,
    /// Lanes without a channel, for which none is being opened yet.
    bare: usize,
    opening: FuturesUnordered<BoxFuture<'static, lapin::Result<Channel>>>,
    /// Channels that could not be opened, one after the other.
    misses: usize,
    /// Since when lanes wait for a channel, or when one last got it, by the session's clock.
    asked: Duration,
    /// When a channel was last given up because it refused everything.
    renewed: Duration,
    closing: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// What became of a channel.
pub(crate) enum Change {
    Opened(lapin::Result<Channel>),
    Closed,
}

impl Lanes {
    /// Opens them all.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        peer: &str,
        settings: &Settings,
    ) -> Result<Self, Outage> {
        let (lanes, patience) = (settings.lanes, settings.confirm_timeout);
        let channel_max = usize::from(connection.configuration().channel_max());
        if channel_max < lanes {
            let reason = format!("open {lanes} lanes: the broker allows {channel_max} channels a connection");
            return Err(Outage::new(OutageKind::Closed, reason));
        }
        let opening = async {
            let channels = (0..lanes).map(|_| open_lane(Arc::clone(&connection)));
            try_join_all(channels).await.map_err(|error| Outage::lost(peer, &error))
        };
        let free = within(patience, "open the lanes", opening).await?;
        Ok(Self {
            connection,
            count: lanes,
            channel_max,
            patience,
            free: free.into_iter().map(Arc::new).collect(),
            bare: 0,
            opening: FuturesUnordered::new(),
            misses: 0,
            asked: Duration::ZERO,
            renewed: Duration::ZERO,
            closing: FuturesUnordered::new(),
        })
    }

    /// How many windows may be out beside those on lanes: a stray's channel needs as much time to close as it needs,
    /// and keeps its number until then.
    pub(crate) fn strays_max(&self) -> usize {
        self.count.min((self.channel_max - self.count) / 2)
    }

    /// A channel that waits; what was lost while it waited is replaced.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Arc<Channel>> {
        while let Some(channel) = self.free.pop() {
            if channel.status().connected() {
                return Some(channel);
            }
            self.lose(now);
        }
        None
    }

    /// A lane's channel waits again.
    pub(crate) fn give_back(&mut self, channel: Arc<Channel>) {
        self.free.push(channel);
    }

    /// A lane is without a channel.
    pub(crate) fn lose(&mut self, now: Duration) {
        if !self.lacks_channels() {
            self.asked = now;
        }
        self.bare += 1;
    }

    /// A lane was refused everything: whether it is to have a fresh channel now.
    pub(crate) fn renews(&mut self, now: Duration) -> bool {
        let renews = self.closing.is_empty() && now.saturating_sub(self.renewed) >= RENEW;
        if renews {
            self.renewed = now;
        }
        renews
    }

    /// Closes a flight's channel in the background. It takes as long as the connection lives at most.
    pub(crate) fn close(&self, flight: Flight) {
        self.closing.push(Box::pin(flight.close()));
    }

    /// The next change. Dropped before it is ready, it has lost nothing.
    pub(crate) async fn change(&mut self) -> Change {
        select! {
            biased;
            // A lane can go on, so before what only makes room.
            Some(opened) = self.opening.next() => Change::Opened(opened),
            Some(()) = self.closing.next() => Change::Closed,
            else => pending().await,
        }
    }

    /// A channel was opened, or could not be.
    pub(crate) fn opened(&mut self, now: Duration, opened: lapin::Result<Channel>) -> Option<Lost> {
        match opened {
            Ok(channel) => {
                (self.asked, self.misses) = (now, 0);
                self.free.push(Arc::new(channel));
                None
            }
            Err(_) if !self.connection.status().connected() => Some(Lost::Unknown),
            // lapin refuses whatever goes to a number whose channel the server has once closed, with the error of
            // then (seen with 4.12); and a number is free only a moment after its close was confirmed. The next try
            // has the next number.
            Err(error) if may_have_the_next_number(&error) && self.misses < self.channel_max => {
                self.misses += 1;
                self.bare += 1;
                None
            }
            Err(error) => Some(Lost::Because(error)),
        }
    }

    /// Opens channels for lanes that have none, as many as the broker allows beside the `out` ones of flights and
    /// those that are still closing; unless it takes too long to open or to close.
    pub(crate) fn fill(&mut self, now: Duration, out: usize) -> Option<Lost> {
        if self.closing.len() > CLOSING_PER_LANE * self.count {
            let reason = format!("close {} channels: the broker has not closed them yet", self.closing.len());
            return Some(Lost::Silent(Outage::new(OutageKind::Silent, reason)));
        }
        if self.lacks_channels() && now.saturating_sub(self.asked) > self.patience {
            return Some(Lost::Silent(Outage::silent("open a channel", self.patience)));
        }
        let open = self.free.len() + out + self.opening.len() + self.closing.len();
        for _ in 0..self.bare.min(self.channel_max.saturating_sub(open)) {
            self.bare -= 1;
            self.opening.push(Box::pin(open_lane(Arc::clone(&self.connection))));
        }
        None
    }

    fn lacks_channels(&self) -> bool {
        self.bare > 0 || !self.opening.is_empty()
    }
}

fn may_have_the_next_number(error: &lapin::Error) -> bool {
    error.is_amqp_soft_error() || matches!(error.kind(), ErrorKind::ChannelsLimitReached)
}
