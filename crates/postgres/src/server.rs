//! Where the server is and how to log in: one type that feeds both clients, tokio-postgres for
//! SQL and pgwire-replication for the stream.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::tls::{SslMode, TlsSettings};
use crate::url::{UrlError, settings};

/// Connection settings: hosts, login and TLS, read from a libpq URL or `key=value` words
/// (PostgreSQL manual, "Database Connection Control Functions").
#[derive(Clone)]
pub struct Server {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) database: String,
    pub(crate) application_name: String,
    pub(crate) options: Option<String>,
    /// The limit for one host, from the first packet to the login; 10 s unless `connect_timeout`.
    pub(crate) connect_limit: Duration,
    pub(crate) ssl_mode: SslMode,
    /// None where no way to connect is encrypted.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) writable: Writable,
}

/// Which servers will do. The relay writes, so that a standby never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writable {
    /// A primary (`target_session_attrs=any` or `primary`).
    Primary,
    /// A primary whose sessions may write by default (`target_session_attrs=read-write`).
    ReadWrite,
}

/// One host of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// Its name (what a certificate must say), the address if `hostaddr` gives it, and the port.
    Tcp(String, Option<IpAddr>, u16),
    /// The folder of the socket, and the port in the socket's name.
    Unix(PathBuf, u16),
}

impl Server {
    /// Reads a libpq URL (`postgres://…`, `postgresql://…`) or `key=value` words, and the
    /// certificate files they name.
    ///
    /// `keepalives…` and `tcp_user_timeout` are accepted and have no effect: every wait has a limit
    /// of its own.
    pub fn parse(text: &str) -> Result<Server, UrlError> {
        let mut lists = HostLists::default();
        let mut tls = TlsSettings::default();
        let (mut user, mut password, mut database) = (None, None, None);
        let (mut application_name, mut options) = (None, None);
        let mut connect_limit = Duration::from_secs(10);
        let mut writable = Writable::Primary;
        for (name, value) in settings(text)? {
            let wrong = |name, problem: &str| Err(UrlError::Value { name, problem: problem.to_owned() });
            match name.as_str() {
                "host" => lists.host = value,
                "hostaddr" => lists.address = value,
                "port" => lists.port = value,
                "user" => user = Some(value),
                "password" => password = Some(value),
                "dbname" => database = Some(value),
                "application_name" | "fallback_application_name" => application_name = Some(value),
                "options" => options = Some(value),
                "connect_timeout" => connect_limit = connect_timeout(&value)?.unwrap_or(connect_limit),
                "sslmode" => tls.mode = SslMode::parse(&value)?,
                "sslrootcert" => tls.root = Some(value),
                "sslcert" => tls.certificate = Some(value),
                "sslkey" => tls.key = Some(value),
                "target_session_attrs" => match value.as_str() {
                    "any" | "primary" => writable = Writable::Primary,
                    "read-write" => writable = Writable::ReadWrite,
                    _ => {
                        return wrong(
                            "target_session_attrs",
                            "expected read-write, primary or any: a relay writes, a standby will not do",
                        );
                    }
                },
                "channel_binding" if matches!(&*value, "disable" | "prefer") => {}
                "channel_binding" => {
                    return wrong("channel_binding", "only disable and prefer are supported");
                }
                "gssencmode" if matches!(&*value, "disable" | "prefer") => {}
                "gssencmode" => return wrong("gssencmode", "only disable and prefer are supported"),
                "sslnegotiation" if value == "postgres" => {}
                "sslnegotiation" => return wrong("sslnegotiation", "only postgres is supported"),
                "keepalives"
                | "keepalives_idle"
                | "keepalives_interval"
                | "keepalives_count"
                | "tcp_user_timeout" => {}
                _ => return Err(UrlError::Unknown(name)),
            }
        }
        let user = match user.filter(|user: &String| !user.is_empty()) {
            Some(user) => user,
            None => system_user()?,
        };
        let hosts = lists.hosts()?;
        let encrypted = tls.mode != SslMode::Disable && hosts.iter().any(|h| matches!(h, Host::Tcp(..)));
        Ok(Server {
            hosts,
            database: database.filter(|name: &String| !name.is_empty()).unwrap_or_else(|| user.clone()),
            user,
            password,
            application_name: application_name.unwrap_or_else(|| "postrider".to_owned()),
            options,
            connect_limit,
            ssl_mode: tls.mode,
            tls: if encrypted { Some(tls.client_config()?) } else { None },
            writable,
        })
    }

    /// The same server with this password.
    #[must_use]
    pub fn with_password(self, password: &str) -> Server {
        Server { password: Some(password.to_owned()), ..self }
    }

    /// Whether a password is known.
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// The role that logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// For logs: user, hosts, ports and database; never a secret.
    pub fn redacted(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        format!("postgres://{}@{}/{}", self.user, hosts.join(","), self.database)
    }
}

impl Server {
    /// The user's `options`, then ours, which win.
    pub(crate) fn options_with(&self, ours: &str) -> String {
        self.options.as_deref().map_or_else(|| ours.to_owned(), |theirs| format!("{theirs} {ours}"))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {:?})", self.redacted(), self.ssl_mode)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp(name, _, port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp(name, _, port) => write!(f, "{name}:{port}"),
            Host::Unix(folder, port) => write!(f, "{}:{port}", folder.display()),
        }
    }
}

/// The three comma-separated lists that belong together.
#[derive(Default)]
struct HostLists {
    host: String,
    address: String,
    port: String,
}

impl HostLists {
    fn hosts(&self) -> Result<Vec<Host>, UrlError> {
        let wrong = |name, problem: &str| UrlError::Value { name, problem: problem.to_owned() };
        let names: Vec<&str> = self.host.split(',').map(str::trim).collect();
        let addresses: Vec<&str> = self.address.split(',').map(str::trim).collect();
        let ports: Vec<&str> = self.port.split(',').map(str::trim).collect();
        let count = if self.host.is_empty() { addresses.len() } else { names.len() };
        if !self.host.is_empty() && !self.address.is_empty() && names.len() != addresses.len() {
            return Err(wrong("hostaddr", "expected as many addresses as hosts"));
        }
        if ports.len() != 1 && ports.len() != count {
            return Err(wrong("port", "expected one port, or as many as hosts"));
        }
        let host = |i: usize| -> Result<Host, UrlError> {
            let port = match ports.get(i).or_else(|| ports.first()).copied().unwrap_or_default() {
                "" => 5432,
                port => match port.parse() {
                    Ok(0) | Err(_) => return Err(wrong("port", "expected a number from 1 to 65535")),
                    Ok(port) => port,
                },
            };
            let address: Option<IpAddr> = match addresses.get(i).copied().unwrap_or_default() {
                "" => None,
                address => Some(address.parse().map_err(|_| wrong("hostaddr", "expected an IP address"))?),
            };
            Ok(match (names.get(i).copied().unwrap_or_default(), address) {
                (folder, _) if folder.starts_with('/') => Host::Unix(folder.into(), port),
                ("", None) => Host::Tcp("localhost".to_owned(), None, port),
                ("", Some(address)) => Host::Tcp(address.to_string(), Some(address), port),
                (name, address) => Host::Tcp(name.to_owned(), address, port),
            })
        };
        (0..count).map(host).collect()
    }
}

/// None for "no limit of libpq's": ours stays.
fn connect_timeout(value: &str) -> Result<Option<Duration>, UrlError> {
    match value.trim().parse::<i64>() {
        Ok(seconds) => Ok(u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs)),
        Err(_) => Err(UrlError::Value {
            name: "connect_timeout",
            problem: "expected a whole number of seconds".to_owned(),
        }),
    }
}

/// libpq's default role: the operating system's user.
fn system_user() -> Result<String, UrlError> {
    match nix::unistd::User::from_uid(nix::unistd::geteuid()) {
        Ok(Some(user)) => Ok(user.name),
        _ => Err(UrlError::Syntax("it names no user, and the operating system's user has no name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_addresses_belong_together() {
        for (text, expected) in [
            ("postgres://u@h/d", "postgres://u@h:5432/d"),
            ("postgres://u@a,b:6000/d", "postgres://u@a:5432,b:6000/d"),
            ("postgres://u@/d", "postgres://u@localhost:5432/d"),
            ("postgres://u:secret@[::1]:6000", "postgres://u@[::1]:6000/u"),
            ("host=/run/pg,h port=6000 user=u dbname=d", "postgres://u@/run/pg:6000,h:6000/d"),
            ("hostaddr=127.0.0.1 user=u", "postgres://u@127.0.0.1:5432/u"),
            ("postgres://u@h/d?sslmode=allow&keepalives=1&connect_timeout=3", "postgres://u@h:5432/d"),
        ] {
            assert_eq!(Server::parse(text).map(|s| s.redacted()), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_named_and_its_value_is_not() {
        for (query, expected) in [
            ("sslmod=require", "unknown parameter \"sslmod\""),
            (
                "sslmode=hunter2",
                "parameter \"sslmode\": expected disable, allow, prefer, require, verify-ca or verify-full",
            ),
            ("port=hunter2", "parameter \"port\": expected a number from 1 to 65535"),
            ("port=1,2", "parameter \"port\": expected one port, or as many as hosts"),
            ("hostaddr=hunter2", "parameter \"hostaddr\": expected an IP address"),
            ("connect_timeout=hunter2", "parameter \"connect_timeout\": expected a whole number of seconds"),
            (
                "target_session_attrs=standby",
                "parameter \"target_session_attrs\": expected read-write, primary or any: a relay writes, a standby will not do",
            ),
            (
                "channel_binding=require",
                "parameter \"channel_binding\": only disable and prefer are supported",
            ),
            (
                "sslmode=verify-ca&sslrootcert=system",
                "parameter \"sslrootcert\": \"system\" needs sslmode=verify-full",
            ),
        ] {
            let error = Server::parse(&format!("postgres://u:hunter2@h/d?{query}")).expect_err(query);
            assert_eq!(error.to_string(), format!("read the connection string: {expected}"));
        }
    }

    #[test]
    fn a_certificate_file_that_is_named_must_be_readable() {
        let error = Server::parse("postgres://u@h/d?sslmode=require&sslrootcert=/nowhere/root.crt");
        assert!(matches!(error, Err(UrlError::Certificate { name: "sslrootcert", .. })), "{error:?}");
    }

    #[test]
    fn a_password_is_in_no_text() {
        let server = Server::parse("postgres://u:hunter2@h/d").expect("a good URL");
        assert!(
            server.has_password() && !Server::parse("postgres://u@h/d").expect("a good URL").has_password()
        );
        for text in
            [server.redacted(), format!("{server:?}"), format!("{:?}", server.with_password("hunter2"))]
        {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
