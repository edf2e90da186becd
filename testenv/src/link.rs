//! A TCP link to a server that can be cut, also inside a frame, stalled, slowed and refused.
//!
//! It runs on a thread of its own, so that a test that blocks does not stall the link.

use std::fmt;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::frame::{Direction, Frame, Protocol};
use crate::port::Port;
use crate::pump::{Flow, Route, Snare, Trap, carry};

/// How long a call waits for the link's thread, which never waits for a peer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A proxy on a free port of 127.0.0.1. Dropping it cuts every connection.
#[derive(Debug)]
pub struct Link {
    port: Port,
    orders: Option<mpsc::UnboundedSender<Order>>,
    flow: watch::Sender<Flow>,
    trap: Trap,
    thread: Option<JoinHandle<()>>,
}

/// What is done by the thread and answered when it is done; an answer is how many connections were open.
#[derive(Debug)]
enum Order {
    Cut(oneshot::Sender<usize>),
    Listen(bool, oneshot::Sender<usize>),
    Count(oneshot::Sender<usize>),
}

/// Where a link was cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The way the frame went.
    pub direction: Direction,
    /// The frame of which only a part arrived.
    pub frame: Frame,
    /// The bytes of the frame that went through: at least one, not all.
    pub passed: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.direction {
            Direction::ToServer => "server",
            Direction::ToClient => "client",
        };
        write!(
            out,
            "cut after {} of the {} bytes of {} to the {end}",
            self.passed, self.frame.size, self.frame
        )
    }
}

/// A cut that waits for its frame.
#[derive(Debug)]
pub struct ArmedCut(oneshot::Receiver<Cut>);

impl ArmedCut {
    /// Waits until the frame has come and the link is cut.
    ///
    /// # Errors
    /// No such frame within `limit`.
    pub async fn fired(self, limit: Duration) -> Result<Cut> {
        let cut =
            timeout(limit, self.0).await.map_err(|_| anyhow!("cut inside a frame: none within {limit:?}"))?;
        cut.context("cut inside a frame: another cut took its place, or the link is gone")
    }
}

impl Link {
    /// Opens a link to a port of 127.0.0.1.
    pub fn start(target: u16, protocol: Protocol) -> Result<Self> {
        let port = Port::free()?;
        let number = port.number();
        let listener = StdListener::bind(("127.0.0.1", number)).context("listen for the link")?;
        listener.set_nonblocking(true).context("listen for the link")?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (flow, flows) = watch::channel(Flow::default());
        let trap = Trap::default();
        let route = Route { target, protocol, flow: flows, trap: Arc::clone(&trap) };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the link")?;
        let thread = std::thread::Builder::new()
            .name(format!("link-{number}"))
            .spawn(move || runtime.block_on(serve(listener, number, route, inbox)))
            .context("start the link's thread")?;
        Ok(Self { port, orders: Some(orders), flow, trap, thread: Some(thread) })
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The same URL by way of this link: the port after the host is replaced.
    pub fn through(&self, url: &str) -> String {
        let authority_from = url.find("://").map_or(0, |at| at + 3);
        let authority_to = url[authority_from..].find(['/', '?']).map_or(url.len(), |at| authority_from + at);
        let authority = &url[authority_from..authority_to];
        let host_from = authority.rfind('@').map_or(0, |at| at + 1);
        let host_to = authority[host_from..].rfind(':').map_or(authority.len(), |at| host_from + at);
        let (before, after) = (&url[..authority_from + host_to], &url[authority_to..]);
        format!("{before}:{}{after}", self.port())
    }

    /// Resets every connection; new ones are accepted. Returns how many there were.
    pub async fn cut(&self) -> Result<usize> {
        self.order(Order::Cut).await
    }

    /// Cuts the connection inside the next frame in `direction` for which `wanted` says yes: about half of its bytes
    /// arrive, then both sides are reset. An earlier cut that still waits is given up.
    pub fn cut_inside_frame(
        &self,
        direction: Direction,
        wanted: impl FnMut(&Frame) -> bool + Send + 'static,
    ) -> ArmedCut {
        let (tell, told) = oneshot::channel();
        *self.trap.lock().expect("no holder panics") =
            Some(Snare { direction, wanted: Box::new(wanted), tell });
        ArmedCut(told)
    }

    /// From now on nothing is forwarded, though connections stay open and new ones are accepted.
    pub fn stall(&self) {
        self.flow.send_modify(|flow| flow.stalled = true);
    }

    /// Ends [`Self::stall`]; what the peers sent meanwhile arrives.
    pub fn resume(&self) {
        self.flow.send_modify(|flow| flow.stalled = false);
    }

    /// Limits each direction of each connection; none lifts the limit.
    pub fn rate(&self, bytes_per_second: Option<u32>) {
        self.flow.send_modify(|flow| flow.bytes_per_second = bytes_per_second);
    }

    /// From now on a new connection is refused; open ones live.
    pub async fn refuse(&self) -> Result<()> {
        self.order(|done| Order::Listen(false, done)).await.map(drop)
    }

    /// Ends [`Self::refuse`].
    pub async fn accept(&self) -> Result<()> {
        self.order(|done| Order::Listen(true, done)).await.map(drop)
    }

    /// How many connections are open.
    pub async fn connections(&self) -> Result<usize> {
        self.order(Order::Count).await
    }

    async fn order(&self, make: impl FnOnce(oneshot::Sender<usize>) -> Order) -> Result<usize> {
        let (done, answer) = oneshot::channel();
        let orders = self.orders.as_ref().context("reach the link: it is dropped")?;
        orders.send(make(done)).context("reach the link's thread")?;
        timeout(ANSWER_LIMIT, answer)
            .await
            .context("wait for the link's thread")?
            .context("hear from the link")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It panics only if the link is broken, and then a test has seen it.
            let _ = thread.join();
        }
    }
}

/// The link's thread: it owns the listener and all connections.
async fn serve(listener: StdListener, port: u16, route: Route, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut listener = Some(TcpListener::from_std(listener).expect("the runtime has a reactor"));
    let (mut knife, _) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Orders first: whoever gave one waits for it.
            biased;
            order = orders.recv() => match order {
                None => break,
                Some(Order::Count(done)) => {
                    while connections.try_join_next().is_some() {}
                    let _ = done.send(connections.len());
                }
                Some(Order::Cut(done)) => {
                    let _ = done.send(cut_all(&mut knife, &mut connections).await);
                }
                Some(Order::Listen(wanted, done)) => {
                    if wanted && listener.is_none() {
                        listener = Some(TcpListener::bind(("127.0.0.1", port)).await.expect("the port is ours"));
                    } else if !wanted {
                        listener = None;
                    }
                    let _ = done.send(connections.len());
                }
            },
            accepted = accepted => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(carry(client, route.clone(), knife.subscribe()));
                }
            }
            // Keeps the set small; the result of a connection is for its peers to see.
            Some(_) = connections.join_next() => {}
        }
    }
    cut_all(&mut knife, &mut connections).await;
}

async fn cut_all(knife: &mut watch::Sender<()>, connections: &mut JoinSet<()>) -> usize {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    knife.send_replace(());
    while connections.join_next().await.is_some() {}
    open
}
