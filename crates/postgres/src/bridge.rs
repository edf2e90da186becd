//! The way from pgwire-replication, which speaks plain text only here, to an encrypted session:
//! a Unix socket that nobody else can use.
//!
//! The socket lives in a fresh folder of mode 0700, takes exactly one connection, which must come
//! from this very process, and its path is gone before a byte flows.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::wire::Wire;

/// The port in the socket's name; any will do.
pub(crate) const PORT: u16 = 1;

/// A listening socket, until its one connection is there.
pub(crate) struct Bridge {
    folder: PrivateFolder,
    listener: UnixListener,
}

impl Bridge {
    /// Listens in a fresh private folder.
    pub(crate) fn open() -> io::Result<Bridge> {
        let folder = PrivateFolder::create()?;
        let listener = UnixListener::bind(folder.0.join(format!(".s.PGSQL.{PORT}")))?;
        Ok(Bridge { folder, listener })
    }

    /// The folder to give to the client as its host.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Accepts the client, removes the path, and copies until either side ends.
    pub(crate) fn carry(self, mut server: Wire, limit: Duration) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let accepted = tokio::time::timeout(limit, self.listener.accept()).await;
            drop(self);
            match accepted {
                Ok(Ok((client, _))) if is_ourselves(&client) => {
                    let mut client = client;
                    let copied = copy_bidirectional_with_sizes(&mut client, &mut server, BLOCK, BLOCK).await;
                    if let Err(e) = copied {
                        tracing::debug!("the encrypted session to Postgres ended: {e}");
                    }
                }
                Ok(Ok(_)) => tracing::error!("another process knocked at the private socket and was refused"),
                Ok(Err(e)) => tracing::warn!("failed to accept on the private socket: {e}"),
                Err(_) => tracing::debug!("nobody came to the private socket"),
            }
        });
        tasks
    }
}

/// Large enough that a burst of WAL is a few copies.
const BLOCK: usize = 128 * 1024;

fn is_ourselves(client: &UnixStream) -> bool {
    client.peer_cred().is_ok_and(|peer| {
        peer.uid() == nix::unistd::geteuid().as_raw() && peer.pid() == i32::try_from(std::process::id()).ok()
    })
}

/// A folder only we can enter; removed on drop.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create() -> io::Result<PrivateFolder> {
        let mut last = None;
        for attempt in 0..8 {
            // Each RandomState has keys of its own, so that nobody can take the name before us.
            let random = RandomState::new().hash_one(attempt);
            let name = format!("postrider-{}-{random:016x}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateFolder(path)),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("no free name")))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!("failed to remove the private folder {}: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn one_connection_of_our_own_and_then_there_is_no_way_in() {
        let bridge = Bridge::open().expect("a socket");
        let folder = bridge.folder().to_owned();
        let path = folder.join(format!(".s.PGSQL.{PORT}"));
        assert_eq!(std::fs::metadata(&folder).expect("the folder").permissions().mode() & 0o777, 0o700);
        let (near, mut server) = tokio::io::duplex(1024);
        let mut tasks = bridge.carry(Box::new(near), Duration::from_secs(10));
        let mut client = UnixStream::connect(&path).await.expect("the way in");
        client.write_all(b"there").await.expect("a word");
        let mut word = [0; 5];
        server.read_exact(&mut word).await.expect("a word");
        assert_eq!(&word, b"there");
        assert!(!folder.exists() && UnixStream::connect(&path).await.is_err());
        server.write_all(b"back").await.expect("an answer");
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert_eq!(answer, "back");
        drop(client);
        assert!(tasks.join_next().await.is_some_and(|ended| ended.is_ok()));
    }

    #[tokio::test]
    async fn nobody_comes() {
        let bridge = Bridge::open().expect("a socket");
        let folder = bridge.folder().to_owned();
        let (near, mut server) = tokio::io::duplex(1024);
        let mut tasks = bridge.carry(Box::new(near), Duration::from_millis(10));
        assert!(tasks.join_next().await.is_some_and(|ended| ended.is_ok()));
        assert!(!folder.exists());
        assert_eq!(server.read(&mut [0; 1]).await.expect("the end"), 0);
    }
}
