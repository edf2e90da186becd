//! A connected, if need be encrypted, byte stream to the server: one way in for both clients.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Bytes in both directions, whatever carries them.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One stream to the server.
pub(crate) type Wire = Box<dyn Duplex>;

/// Where exactly a connection went, so that a second one reaches the same server the same way.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// An address, the name its certificate must carry, and whether the session is encrypted.
    Tcp { address: SocketAddr, name: String, encrypted: bool },
    /// The folder of the socket and the port in the socket's name.
    Unix { folder: PathBuf, port: u16 },
}

/// The server has no TLS, or the handshake failed: the other way of `allow` and `prefer` may do.
#[derive(Debug)]
pub(crate) enum WireError {
    /// The address cannot be reached.
    Unreachable(io::Error),
    /// It can, but not encrypted.
    Tls(io::Error),
}

impl Endpoint {
    /// Connects; the caller sets the time limit.
    pub(crate) async fn open(&self, tls: Option<&Arc<ClientConfig>>) -> Result<Wire, WireError> {
        match self {
            Endpoint::Unix { folder, port } => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                Ok(Box::new(UnixStream::connect(path).await.map_err(WireError::Unreachable)?))
            }
            Endpoint::Tcp { address, name, encrypted } => {
                let tcp = TcpStream::connect(address).await.map_err(WireError::Unreachable)?;
                tcp.set_nodelay(true).map_err(WireError::Unreachable)?;
                match tls.filter(|_| *encrypted) {
                    None => Ok(Box::new(tcp)),
                    Some(config) => handshake(tcp, name, config).await.map_err(WireError::Tls),
                }
            }
        }
    }

    /// The same address, encrypted or not.
    pub(crate) fn with_tls(self, tls: bool) -> Endpoint {
        match self {
            Endpoint::Tcp { address, name, .. } => Endpoint::Tcp { address, name, encrypted: tls },
            Endpoint::Unix { .. } => self,
        }
    }

    /// Whether pgwire-replication cannot connect by itself (it is built without TLS).
    pub(crate) fn encrypted(&self) -> bool {
        matches!(self, Endpoint::Tcp { encrypted: true, .. })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix { folder, port } => write!(f, "{}:{port}", folder.display()),
            Endpoint::Tcp { address, name, .. } if address.ip().to_string() == *name => {
                write!(f, "{address}")
            }
            Endpoint::Tcp { address, name, .. } => write!(f, "{name}:{} ({})", address.port(), address.ip()),
        }
    }
}

/// Length 8 and the code of an `SSLRequest` (PostgreSQL manual, "Message Formats").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

async fn handshake(mut tcp: TcpStream, name: &str, config: &Arc<ClientConfig>) -> io::Result<Wire> {
    tcp.write_all(&SSL_REQUEST).await?;
    // One byte and no more: what stood behind it unencrypted must reach the TLS layer and fail there.
    if tcp.read_u8().await? != b'S' {
        return Err(io::Error::other("the server does not offer TLS"));
    }
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(config.clone()).connect(name, tcp).await?))
}
