//! Where a broker is and how to log in: RabbitMQ's URI, with its query parameters.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lapin::uri::SASLMechanism;
use percent_encoding::percent_decode_str;
use url::Url;

/// The largest frame we ask for, in bytes: RabbitMQ's own default. lapin's buffers are 32 frames each.
const FRAME_MAX: u32 = 131_072;
/// The smallest that AMQP 0-9-1 allows (section 4.2.1, `frame-min-size`).
const FRAME_MIN: u32 = 4096;
/// How long a connection attempt may take at each step, unless the URL says otherwise.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A broker's address and login, read from a URL (RabbitMQ manual, "RabbitMQ URI Specification" and "RabbitMQ
/// URI Query Parameters"). Its text and debug form never show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) vhost: String,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) mechanism: SASLMechanism,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) heartbeat_s: Option<u16>,
    pub(crate) frame_max: u32,
    pub(crate) channel_max: u16,
    pub(crate) connect_limit: Duration,
}

/// What `amqps` needs besides the address. The files are read at each attempt to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The authorities to trust, PEM; none: those of the system.
    pub(crate) cacertfile: Option<PathBuf>,
    /// Our certificate chain and its key, PEM.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The name the server's certificate must have, if it is not the host.
    pub(crate) server_name: Option<String>,
}

/// The URL is not one of a broker. The text never shows the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is not a URL.
    #[error("read the broker's URL: {0}")]
    Syntax(#[from] url::ParseError),
    /// It is one of something else.
    #[error("read the broker's URL: its scheme is {0:?}, expected amqp or amqps")]
    Scheme(String),
    /// A part of it cannot be used.
    #[error("read the broker's URL: its {part} {problem}")]
    Part {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A query parameter that is not known here.
    #[error("read the broker's URL: parameter {0:?} is not known; known are {known}", known = PARAMETERS.join(", "))]
    Parameter(String),
    /// A query parameter with a value that it cannot have.
    #[error("read the broker's URL: parameter {name} is {value:?}, expected {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What it was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

const PARAMETERS: [&str; 10] = [
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "keyfile",
    "server_name_indication",
    "verify",
    "heartbeat",
    "frame_max",
    "channel_max",
    "connection_timeout",
];

impl Endpoint {
    /// Reads `amqp://user:password@host:port/vhost?parameter=value` (or `amqps`). All parts are optional:
    /// `guest`, `guest`, `localhost`, 5672 or 5671; a missing or empty vhost is `/`.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let url = Url::parse(text)?;
        let tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            other => return Err(UrlError::Scheme(other.to_owned())),
        };
        if url.cannot_be_a_base() {
            return Err(part("address", "does not begin with //"));
        }
        if url.fragment().is_some() {
            return Err(part("text", "holds a #, which has to be written %23"));
        }
        let host = url.host_str().filter(|host| !host.is_empty()).unwrap_or("localhost");
        let vhost = decoded("vhost", url.path().strip_prefix('/').unwrap_or_default())?;
        let mut endpoint = Self {
            host: decoded("host", host.trim_start_matches('[').trim_end_matches(']'))?,
            port: url.port().unwrap_or(if tls { 5671 } else { 5672 }),
            vhost: if vhost.is_empty() { "/".to_owned() } else { vhost },
            user: decoded("user", url.username())?,
            password: url.password().map(|password| decoded("password", password)).transpose()?,
            mechanism: SASLMechanism::Plain,
            tls: tls.then(TlsFiles::default),
            heartbeat_s: None,
            frame_max: FRAME_MAX,
            channel_max: 0,
            connect_limit: CONNECT_LIMIT,
        };
        if endpoint.vhost.len() > 255 {
            return Err(part("vhost", "is longer than 255 bytes"));
        }
        endpoint.read_parameters(&url)?;
        Ok(endpoint)
    }

    /// Whether the URL itself holds a password.
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// The same endpoint with this password, such as one read from a file.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Host and port, for words about it.
    pub(crate) fn peer(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The user to log in as.
    pub(crate) fn login(&self) -> &str {
        if self.user.is_empty() { "guest" } else { &self.user }
    }

    /// The password to log in with; a user other than guest without one has an empty one.
    pub(crate) fn password(&self) -> &str {
        let default = if self.login() == "guest" { "guest" } else { "" };
        self.password.as_deref().unwrap_or(default)
    }

    fn read_parameters(&mut self, url: &Url) -> Result<(), UrlError> {
        let (mut tls, mut certfile, mut keyfile) = (TlsFiles::default(), None, None);
        for (name, value) in url.query_pairs() {
            let Some(&name) = PARAMETERS.iter().find(|known| **known == name) else {
                return Err(UrlError::Parameter(name.into_owned()));
            };
            let refused = |expected| UrlError::Value { name, value: value.clone().into_owned(), expected };
            if matches!(name, "cacertfile" | "certfile" | "keyfile" | "server_name_indication" | "verify")
                && self.tls.is_none()
            {
                return Err(refused("to be absent unless the scheme is amqps"));
            }
            match name {
                "cacertfile" => tls.cacertfile = Some(value.as_ref().into()),
                "certfile" => certfile = Some(PathBuf::from(value.as_ref())),
                "keyfile" => keyfile = Some(PathBuf::from(value.as_ref())),
                "server_name_indication" => tls.server_name = Some(value.into_owned()),
                "verify" if value == "verify_peer" => {}
                "verify" => return Err(refused("verify_peer (name the authority with cacertfile)")),
                "auth_mechanism" => {
                    self.mechanism = match value.to_ascii_lowercase().as_str() {
                        "plain" => SASLMechanism::Plain,
                        "amqplain" => SASLMechanism::AMQPlain,
                        "external" => SASLMechanism::External,
                        _ => return Err(refused("plain, amqplain or external")),
                    }
                }
                "heartbeat" => {
                    let seconds = value.parse().map_err(|_| refused("seconds up to 65535"))?;
                    self.heartbeat_s = Some(seconds);
                }
                "frame_max" => {
                    let bytes = value.parse().ok().filter(|bytes| (FRAME_MIN..=FRAME_MAX).contains(bytes));
                    self.frame_max = bytes.ok_or_else(|| refused("bytes from 4096 to 131072"))?;
                }
                "channel_max" => {
                    self.channel_max = value.parse().map_err(|_| refused("a number up to 65535"))?;
                }
                "connection_timeout" => {
                    let ms = value.parse().ok().filter(|ms| *ms > 0);
                    self.connect_limit =
                        Duration::from_millis(ms.ok_or_else(|| refused("milliseconds above 0"))?);
                }
                other => unreachable!("parameter {other} is listed and not read"),
            }
        }
        tls.identity = match (certfile, keyfile) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(part("parameters", "name only one of certfile and keyfile")),
        };
        self.tls = self.tls.is_some().then_some(tls);
        Ok(())
    }
}

/// The address and login without the password and without parameters.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        write!(f, "{scheme}://{}:***@{}/", encoded(self.login()), self.peer())?;
        if self.vhost == "/" { Ok(()) } else { write!(f, "{}", encoded(&self.vhost)) }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

fn part(part: &'static str, problem: &'static str) -> UrlError {
    UrlError::Part { part, problem }
}

fn decoded(name: &'static str, text: &str) -> Result<String, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| part(name, "is not UTF-8"))?;
    Ok(decoded.into_owned())
}

fn encoded(text: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_part_has_its_default() {
        for text in ["amqp://", "amqp://localhost", "amqp://localhost/", "amqp://guest@localhost:5672/%2f"] {
            let endpoint = parse(text);
            assert_eq!(
                (endpoint.login(), endpoint.host.as_str(), endpoint.port, endpoint.vhost.as_str()),
                ("guest", "localhost", 5672, "/"),
                "{text}"
            );
        }
        assert_eq!(parse("amqps://rabbit").port, 5671);
    }

    #[test]
    fn parts_are_decoded() {
        let endpoint = parse("amqp://us%40er:p%2Fw%3A@[::1]:5673/my%2Fshop");
        assert_eq!(endpoint.user, "us@er");
        assert_eq!(endpoint.password.as_deref(), Some("p/w:"));
        assert_eq!((endpoint.host.as_str(), endpoint.peer().as_str()), ("::1", "[::1]:5673"));
        assert_eq!(endpoint.vhost, "my/shop");
    }

    #[test]
    fn parameters_are_read() {
        let endpoint = parse(
            "amqps://r/?auth_mechanism=external&cacertfile=/a.pem&certfile=/b.pem&keyfile=/c%20d.pem\
             &verify=verify_peer&server_name_indication=rabbit&heartbeat=5&frame_max=8192&channel_max=20\
             &connection_timeout=1500",
        );
        assert_eq!(endpoint.mechanism, SASLMechanism::External);
        assert_eq!(
            endpoint.tls,
            Some(TlsFiles {
                cacertfile: Some("/a.pem".into()),
                identity: Some(("/b.pem".into(), "/c d.pem".into())),
                server_name: Some("rabbit".to_owned()),
            })
        );
        assert_eq!((endpoint.heartbeat_s, endpoint.frame_max, endpoint.channel_max), (Some(5), 8192, 20));
        assert_eq!(endpoint.connect_limit, Duration::from_millis(1500));
        assert_eq!(parse("amqp://r/?heartbeat=5").tls, None);
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_the_password() {
        let check = |text: &str, expected: &str| {
            let error = Endpoint::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        };
        check("http://u:s3cret@r", "expected amqp or amqps");
        check("amqp:u:s3cret@r", "does not begin with //");
        check("amqp://u:s3cret@r:99999", "port");
        check("amqp://u:s3cret#@r/", "");
        check("amqp://u:s3cret@r/v#w", "%23");
        check("amqp://u:s3cret@r/?hartbeat=1", "\"hartbeat\" is not known");
        check("amqp://u:s3cret@r/?heartbeat=soon", "seconds");
        check("amqp://u:s3cret@r/?frame_max=100", "4096");
        check("amqp://u:s3cret@r/?cacertfile=/a", "amqps");
        check("amqps://u:s3cret@r/?verify=verify_none", "verify_peer");
        check("amqps://u:s3cret@r/?certfile=/a", "only one");
        check(&format!("amqp://u:s3cret@r/{}", "v".repeat(256)), "255");
    }

    #[test]
    fn the_password_is_never_shown() {
        let endpoint = parse("amqps://u:s3cret@r/shop?heartbeat=3");
        assert_eq!(endpoint.to_string(), "amqps://u:***@r:5671/shop");
        assert_eq!(format!("{endpoint:?}"), "Endpoint(amqps://u:***@r:5671/shop)");
        assert!(endpoint.has_password() && !parse("amqp://u@r").has_password());
        assert_eq!((parse("amqp://r").password(), parse("amqp://u@r").password()), ("guest", ""));
        assert_eq!(parse("amqp://u@r").with_password("s3cret").password.as_deref(), Some("s3cret"));
    }
}
