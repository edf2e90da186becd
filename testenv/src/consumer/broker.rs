//! One connection to the broker with one channel, every wait with a limit.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amqprs::channel::Channel;
use amqprs::connection::{Connection, OpenConnectionArguments};
use anyhow::{Context as _, Result};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::ear::{Ear, Word};

/// For each exchange of words with the broker.
const LIMIT: Duration = Duration::from_secs(20);
const HEARTBEAT_S: u16 = 10;

/// An open connection; dropping it closes it as well as it can.
pub(super) struct Broker {
    pub(super) channel: Channel,
    connection: Connection,
    /// What it says of what is published.
    pub(super) heard: mpsc::UnboundedReceiver<Word>,
    /// Why the broker has closed the channel.
    farewell: Arc<OnceLock<String>>,
}

impl Broker {
    /// Connects to an `amqp://user:password@host:port/vhost` URL; without a path the vhost is `/`.
    pub(super) async fn open(url: &str) -> Result<Self> {
        let address = Address::parse(url).context("read the broker's URL")?;
        let mut arguments =
            OpenConnectionArguments::new(&address.host, address.port, &address.user, &address.password);
        arguments.virtual_host(&address.vhost).connection_name("testenv").heartbeat(HEARTBEAT_S);
        let connection = within("connect to the broker", Connection::open(&arguments)).await?;
        let channel = within("open a channel", connection.open_channel(None)).await?;
        let farewell = Arc::default();
        // Without one a consumer that the broker cancels would wait for ever.
        let (words, heard) = mpsc::unbounded_channel();
        let ear = Ear { words, farewell: Arc::clone(&farewell) };
        within("register for channel events", channel.register_callback(ear)).await?;
        Ok(Self { channel, connection, heard, farewell })
    }

    /// Waits for the broker as [`within`] does, and says why it has closed the channel if it has.
    pub(super) async fn ask<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<T, amqprs::error::Error>>,
    ) -> Result<T> {
        within(what, answer).await.with_context(|| {
            let why = self.farewell.get().map_or("it did not say why", String::as_str);
            format!("hear from the broker ({why})")
        })
    }

    /// Closes it; what was written before has been read by the broker then.
    pub(super) async fn close(self) -> Result<()> {
        within("close the channel", self.channel.close()).await?;
        within("close the connection", self.connection.close()).await
    }
}

/// Waits for the broker, but not for ever.
pub(super) async fn within<T>(
    what: &str,
    answer: impl Future<Output = Result<T, amqprs::error::Error>>,
) -> Result<T> {
    timeout(LIMIT, answer)
        .await
        .with_context(|| format!("{what} within {LIMIT:?}"))?
        .with_context(|| what.to_owned())
}

#[derive(Debug, PartialEq, Eq)]
struct Address {
    user: String,
    password: String,
    host: String,
    port: u16,
    vhost: String,
}

impl Address {
    fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("amqp://").context("expect amqp://")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, place) = authority.rsplit_once('@').unwrap_or(("guest:guest", authority));
        let (user, password) = login.split_once(':').context("expect user:password")?;
        let (host, port) = place.rsplit_once(':').unwrap_or((place, "5672"));
        let vhost = if path.is_empty() { "/".to_owned() } else { percent_decoded(path)? };
        Ok(Self {
            user: percent_decoded(user)?,
            password: percent_decoded(password)?,
            host: host.to_owned(),
            port: port.parse().context("read the port")?,
            vhost,
        })
    }
}

fn percent_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.with_context(|| format!("read %{part}"))?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).context("read a percent-encoded text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_vhost_or_mean_the_default() {
        let check = |url: &str, user: &str, host: &str, port, vhost: &str| {
            let address = Address::parse(url).unwrap();
            assert_eq!(
                (&*address.user, &*address.host, address.port, &*address.vhost),
                (user, host, port, vhost)
            );
        };
        check("amqp://127.0.0.1", "guest", "127.0.0.1", 5672, "/");
        check("amqp://a%40b:p%2Fw@localhost:5673/", "a@b", "localhost", 5673, "/");
        check("amqp://u:p@h:1/%2Fshop", "u", "h", 1, "/shop");
        assert_eq!(Address::parse("amqp://u:p%2Fw@h/v").unwrap().password, "p/w");
        for url in ["amqps://h", "amqp://user@h", "amqp://u:p%2@h", "amqp://u:p@h:port"] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }
}
