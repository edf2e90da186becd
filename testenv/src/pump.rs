//! One connection of a link: two pumps that know where frames begin.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use crate::frame::{Direction, Frame, Protocol, Questions, Scanner};
use crate::link::Cut;

const PIECE: usize = 64 * 1024;

/// What every connection of a link shares.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) target: u16,
    pub(crate) protocol: Protocol,
    pub(crate) flow: watch::Receiver<Flow>,
    pub(crate) trap: Trap,
}

/// How bytes move, the same for all connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) stalled: bool,
    pub(crate) bytes_per_second: Option<u32>,
}

pub(crate) type Trap = Arc<Mutex<Option<Snare>>>;

/// What waits for a frame to cut inside.
pub(crate) struct Snare {
    pub(crate) direction: Direction,
    pub(crate) wanted: Box<dyn FnMut(&Frame) -> bool + Send>,
    pub(crate) tell: oneshot::Sender<Cut>,
}

impl fmt::Debug for Snare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Snare").field("direction", &self.direction).finish_non_exhaustive()
    }
}

/// One connection, both ways, until both ends are through or it is cut.
pub(crate) async fn carry(mut client: TcpStream, route: Route, mut knife: watch::Receiver<()>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", route.target)).await else {
        reset(&client);
        return;
    };
    // A delayed small frame would be a fault that nobody ordered.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let questions = Questions::default();
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut up = Pump::new(&route, Direction::ToServer, &questions);
        let mut down = Pump::new(&route, Direction::ToClient, &questions);
        tokio::select! {
            // The knife first: after a cut not a byte more goes through.
            biased;
            _ = knife.changed() => true,
            ends = async { tokio::try_join!(up.run(from_client, to_server), down.run(from_server, to_client)) } => {
                ends.is_err()
            }
        }
    };
    if cut {
        reset(&client);
        reset(&server);
    }
}

/// Lets the socket's close be a reset.
fn reset(stream: &TcpStream) {
    // A socket that its peer has reset already is as good.
    let _ = stream.set_zero_linger();
}

/// The connection has to be reset.
struct Broken;

impl From<std::io::Error> for Broken {
    fn from(_: std::io::Error) -> Self {
        Self
    }
}

/// One direction of one connection.
struct Pump {
    direction: Direction,
    flow: watch::Receiver<Flow>,
    trap: Trap,
    scanner: Scanner,
    /// Read, not yet forwarded.
    held: Vec<u8>,
    /// Bytes of the current frame that are still to be forwarded.
    left: usize,
}

impl Pump {
    fn new(route: &Route, direction: Direction, questions: &Questions) -> Self {
        Self {
            direction,
            flow: route.flow.clone(),
            trap: Arc::clone(&route.trap),
            scanner: Scanner::new(route.protocol, direction, Arc::clone(questions)),
            held: Vec::new(),
            left: 0,
        }
    }

    async fn run(&mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Broken> {
        let mut piece = vec![0; PIECE];
        loop {
            let rate = self.flow.borrow().bytes_per_second;
            // A tenth of a second's worth at a time, so that a slow link is smooth.
            let most = rate.map_or(PIECE, |rate| usize::try_from(rate / 10).unwrap_or(PIECE).clamp(1, PIECE));
            let count = from.read(&mut piece[..most]).await?;
            self.flow.wait_for(|flow| !flow.stalled).await.map_err(|_| Broken)?;
            if count == 0 {
                to.write_all(&self.held).await?;
                to.shutdown().await?;
                return Ok(());
            }
            self.held.extend_from_slice(&piece[..count]);
            let (whole, cut) = self.scan();
            to.write_all(&self.held[..whole]).await?;
            self.held.drain(..whole);
            if let Some((frame, tell)) = cut {
                self.cut_inside(frame, tell, &mut from, &mut to).await?;
            }
            if let Some(rate) = rate {
                sleep(Duration::from_secs_f64(
                    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / f64::from(rate),
                ))
                .await;
            }
        }
    }

    /// How many of the held bytes can be forwarded, and the frame after them that is to be cut.
    fn scan(&mut self) -> (usize, Option<(Frame, oneshot::Sender<Cut>)>) {
        let mut whole = 0;
        loop {
            let part = self.left.min(self.held.len() - whole);
            whole += part;
            self.left -= part;
            if self.left > 0 {
                return (whole, None);
            }
            let Some(frame) = self.scanner.next(&self.held[whole..]) else { return (whole, None) };
            if let Some(tell) = self.sprung(&frame) {
                return (whole, Some((frame, tell)));
            }
            self.left = frame.size;
        }
    }

    fn sprung(&self, frame: &Frame) -> Option<oneshot::Sender<Cut>> {
        let mut trap = self.trap.lock().expect("no holder panics");
        let snare = trap.as_mut()?;
        let wanted = snare.direction == self.direction && frame.size > 1 && (snare.wanted)(frame);
        if wanted { trap.take().map(|snare| snare.tell) } else { None }
    }

    /// Forwards about half of the frame, then breaks the connection.
    async fn cut_inside(
        &mut self,
        frame: Frame,
        tell: oneshot::Sender<Cut>,
        from: &mut ReadHalf<'_>,
        to: &mut WriteHalf<'_>,
    ) -> Result<(), Broken> {
        let passed = frame.size / 2;
        while self.held.len() < passed {
            if from.read_buf(&mut self.held).await? == 0 {
                return Err(Broken);
            }
        }
        to.write_all(&self.held[..passed]).await?;
        // The test may have stopped listening.
        let _ = tell.send(Cut { direction: self.direction, frame, passed });
        Err(Broken)
    }
}
