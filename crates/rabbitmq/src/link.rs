//! One AMQP connection, from the name lookup to its end.
//!
//! Invariant: nothing outlives a [`Link`]. lapin reads and writes on a thread of its own, which a connection
//! that was dropped while the broker is frozen or blocks us keeps for ever; so the link holds a second handle
//! on the socket and shuts it down when dropped.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::types::{LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::endpoint::{Endpoint, TlsFiles};
use crate::outage::{Outage, OutageKind, server_word, words};
use crate::settings::Settings;
use crate::{exchange, tls};

/// An open connection and what it tells.
pub(crate) struct Link {
    pub(crate) connection: Arc<Connection>,
    pub(crate) events: BoxStream<'static, lapin::Event>,
    pub(crate) peer: String,
    _socket: Socket,
}

/// The second handle on the socket.
struct Socket(TcpStream);

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails only if the connection is gone already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Link {
    /// Connects and makes sure of the exchange; each step within the endpoint's limit.
    pub(crate) async fn open(endpoint: &Endpoint, settings: &Settings) -> Result<Self, Outage> {
        let link = Self::connect(endpoint, settings).await?;
        let ensured = exchange::ensure(&link.connection, settings);
        within(endpoint.connect_limit, "make sure of the exchange", ensured).await?;
        Ok(link)
    }

    /// Connects, logs in and opens the vhost; each step within the endpoint's limit.
    pub(crate) async fn connect(endpoint: &Endpoint, settings: &Settings) -> Result<Self, Outage> {
        let (peer, limit) = (endpoint.peer(), endpoint.connect_limit);
        let step = format!("connect to {peer}");
        let addresses = within(limit, &step, resolve(endpoint)).await?;
        let config = match &endpoint.tls {
            Some(files) => Some(within(limit, &step, read_tls(files.clone())).await?),
            None => None,
        };

        let runtime = lapin::runtime::default_runtime()
            .map_err(|error| Outage::new(OutageKind::Broken, format!("find the runtime: {error}")))?;
        let mut stream = Err(Outage::new(OutageKind::Unreachable, format!("{step}: it has no address")));
        for address in addresses {
            let attempt = async {
                let stream = AsyncTcpStream::connect(&runtime, address).await;
                stream.map_err(|error| Outage::new(OutageKind::Unreachable, format!("{step}: {error}")))
            };
            stream = within(limit, &step, attempt).await;
            if stream.is_ok() {
                break;
            }
        }
        let mut stream = stream?;
        let AsyncTcpStream::Plain(tcp) = &stream else { unreachable!("TLS comes after TCP") };
        let socket = tcp.get_ref().as_fd().try_clone_to_owned().map(|socket| Socket(socket.into()));
        let options = tcp.get_ref().set_nodelay(true);
        let socket = options.and(socket).map_err(|error| {
            Outage::new(OutageKind::Unreachable, format!("prepare the socket to {peer}: {error}"))
        })?;

        if let Some(config) = config {
            let step = format!("agree on TLS with {peer}");
            let name = endpoint.tls.as_ref().and_then(|files| files.server_name.as_ref());
            let handshake = async {
                let connector = RustlsConnector::from(config);
                let stream = stream.into_rustls(&connector, name.unwrap_or(&endpoint.host)).await;
                stream.map_err(|error| Outage::new(OutageKind::Tls, format!("{step}: {error}")))
            };
            stream = within(limit, &step, handshake).await?;
        }

        let ready = Mutex::new(Some(stream));
        let hand_over = async move |_, _| {
            let stream = ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected).into())
        };
        let opening =
            Connection::connector(uri(endpoint, settings), runtime, hand_over, properties(settings));
        let step = format!("log in to {peer} as {:?} on vhost {:?}", endpoint.login(), endpoint.vhost);
        let opening = async { opening.await.map_err(|error| refused(&step, &error)) };
        let connection = within(limit, &step, opening).await?;
        Ok(Self {
            events: connection.events_listener().boxed(),
            connection: Arc::new(connection),
            peer,
            _socket: socket,
        })
    }

    /// Takes leave of the broker, for `limit` at most.
    pub(crate) async fn close(&mut self, limit: Duration) {
        // Whatever the broker answers, or if it does not: the socket is shut down next.
        let _ = timeout(limit, self.connection.close(200, ShortString::default())).await;
    }
}

/// A channel in confirm mode.
pub(crate) async fn open_lane(connection: Arc<Connection>) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// What `work` makes of it, or the outage that it took longer than `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    step: &str,
    work: impl Future<Output = Result<T, Outage>>,
) -> Result<T, Outage> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(Outage::silent(step, limit)))
}

async fn resolve(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, Outage> {
    let addresses = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await;
    addresses.map(Iterator::collect).map_err(|error| {
        Outage::new(OutageKind::Unreachable, format!("find the address of {:?}: {error}", endpoint.host))
    })
}

async fn read_tls(files: TlsFiles) -> Result<Arc<rustls::ClientConfig>, Outage> {
    let read = tokio::task::spawn_blocking(move || tls::client_config(&files)).await;
    match read {
        Ok(config) => config.map_err(|error| Outage::new(OutageKind::Tls, error.to_string())),
        Err(end) => Err(Outage::new(OutageKind::Tls, format!("read the files for TLS: {end}"))),
    }
}

fn uri(endpoint: &Endpoint, settings: &Settings) -> AMQPUri {
    let heartbeat = u16::try_from(settings.heartbeat.as_secs()).unwrap_or(u16::MAX);
    AMQPUri {
        // The stream that lapin is handed has its TLS already.
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: endpoint.login().to_owned(),
                password: endpoint.password().to_owned(),
            },
            host: endpoint.host.clone(),
            port: endpoint.port,
        },
        vhost: endpoint.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(endpoint.frame_max),
            channel_max: Some(endpoint.channel_max),
            heartbeat: Some(endpoint.heartbeat_s.unwrap_or(heartbeat)),
            connection_timeout: None,
            auth_mechanism: Some(endpoint.mechanism),
        },
    }
}

/// What the broker's management shows. Auto-recovery stays off: it hides which confirms are lost.
fn properties(settings: &Settings) -> ConnectionProperties {
    let text = |text: &str| LongString::from(text);
    ConnectionProperties::default()
        .with_connection_name(text(&settings.connection_name))
        .with_client_property("product".into(), text("postrider"))
        .with_client_property("version".into(), text(env!("CARGO_PKG_VERSION")))
}

/// Why the broker did not let us in.
fn refused(step: &str, error: &lapin::Error) -> Outage {
    let kind = match server_word(error).map(lapin::protocol::AMQPError::get_id) {
        // access-refused
        Some(403) => OutageKind::Login,
        // not-allowed: the vhost is missing, or the user has no permission in it
        Some(530) => OutageKind::Vhost,
        Some(_) => OutageKind::Closed,
        None => OutageKind::Broken,
    };
    Outage::new(kind, format!("{step}: {}", words(error)))
}
