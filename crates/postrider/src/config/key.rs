//! The one list of keys: the file, the variables, the flags, the example and the README read it.

use std::net::SocketAddr;

use toml::Value;
use toml::de::DeValue;

/// One key of the configuration.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// One value, or several (an array in the file, comma-separated elsewhere).
    pub(crate) list: bool,
    pub(crate) default: Default,
    /// One sentence for the README and the example file.
    pub(crate) meaning: &'static str,
}

/// What a key is when nobody sets it.
#[derive(Debug)]
pub(crate) enum Default {
    /// This, as it would be written in a variable.
    Is(&'static str),
    /// Nothing; the text shows what it could be.
    Unset(&'static str),
}

/// What a value must look like.
#[derive(Debug)]
pub(crate) enum Form {
    /// Text that passes `check`, whose error says what is wrong with it.
    Text { expected: &'static str, check: fn(&str) -> Result<(), String> },
    /// The same, but it may hold a password: never shown.
    Url { expected: &'static str, check: fn(&str) -> Result<(), String> },
    /// A whole number in these bounds.
    Whole { min: i64, max: i64 },
    /// A number in these bounds.
    Fraction { min: f64, max: f64 },
    /// true or false.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// Every key there is, by section, in the order of the README.
pub(crate) const KEYS: &[Key] = &[
    Key {
        section: "postgres",
        name: "url",
        form: Form::Url { expected: "a connection string as libpq takes it", check: postgres_url },
        list: false,
        default: Default::Unset("postgres://postrider_relay@localhost:5432/shop?sslmode=verify-full"),
        meaning: "The database, as libpq takes it: every sslmode, several hosts, unix sockets.",
    },
    Key {
        section: "postgres",
        name: "password_file",
        form: TEXT,
        list: false,
        default: Default::Unset("/run/secrets/postgres"),
        meaning: "A file that holds the password of `postgres.url`, instead of the URL itself.",
    },
    Key {
        section: "postgres",
        name: "slot",
        form: Form::Text { expected: "1 to 63 of a-z, 0-9 and _", check: slot_name },
        list: false,
        default: Default::Is("postrider"),
        meaning: "The replication slot that is read.",
    },
    Key {
        section: "postgres",
        name: "publication",
        form: Form::Text { expected: "a name of 1 to 63 bytes without quotes", check: publication_name },
        list: false,
        default: Default::Is("postrider"),
        meaning: "The publication that names the outbox.",
    },
    Key {
        section: "postgres",
        name: "report_every_ms",
        form: Form::Whole { min: 10, max: 60_000 },
        list: false,
        default: Default::Is("1000"),
        meaning: "How often the position is reported; at most a quarter of the server's `wal_sender_timeout`.",
    },
    Key {
        section: "outbox",
        name: "table",
        form: Form::Text { expected: "schema.table, such as postrider.outbox", check: table_name },
        list: true,
        default: Default::Is("postrider.outbox"),
        meaning: "The outbox table, or several.",
    },
    Key {
        section: "rabbitmq",
        name: "url",
        form: Form::Url { expected: "an amqp:// or amqps:// URL", check: rabbitmq_url },
        list: false,
        default: Default::Unset("amqps://postrider@localhost:5671/%2f"),
        meaning: "The broker.",
    },
    Key {
        section: "rabbitmq",
        name: "urls",
        form: Form::Url { expected: "amqp:// or amqps:// URLs", check: rabbitmq_url },
        list: true,
        default: Default::Unset("amqps://postrider@a:5671/%2f, amqps://postrider@b:5671/%2f"),
        meaning: "The nodes of a cluster, tried in turn; instead of `rabbitmq.url`.",
    },
    Key {
        section: "rabbitmq",
        name: "password_file",
        form: TEXT,
        list: false,
        default: Default::Unset("/run/secrets/rabbitmq"),
        meaning: "A file that holds the password of the URL or URLs, instead of the URL itself.",
    },
    Key {
        section: "rabbitmq",
        name: "exchange",
        form: SHORT,
        list: false,
        default: Default::Is("postrider"),
        meaning: "The exchange to publish to, unless the row names one.",
    },
    Key {
        section: "rabbitmq",
        name: "exchange_type",
        form: SHORT,
        list: false,
        default: Default::Is("topic"),
        meaning: "The type the exchange is declared with.",
    },
    Key {
        section: "rabbitmq",
        name: "declare",
        form: Form::Switch,
        list: false,
        default: Default::Is("true"),
        meaning: "Whether the exchange is declared (durable) at start; if not, it must be there.",
    },
    Key {
        section: "rabbitmq",
        name: "routing_key",
        form: Form::Text {
            expected: "text with columns in braces, such as orders.{event_type}",
            check: template,
        },
        list: false,
        default: Default::Is("{aggregate_type}.{event_type}"),
        meaning: "The template of the routing key, unless the row has one of its own.",
    },
    Key {
        section: "rabbitmq",
        name: "lanes",
        form: Form::Whole { min: 1, max: 256 },
        list: false,
        default: Default::Is("8"),
        meaning: "Channels that publish side by side, each with one window out at most.",
    },
    Key {
        section: "rabbitmq",
        name: "window_events",
        form: Form::Whole { min: 1, max: 10_000 },
        list: false,
        default: Default::Is("128"),
        meaning: "Events that go out together and are settled together.",
    },
    Key {
        section: "rabbitmq",
        name: "events_per_key",
        form: Form::Whole { min: 1, max: 10_000 },
        list: false,
        default: Default::Is("1"),
        meaning: "Events of one aggregate in flight at once; above 1, order is kept only while nothing is rejected.",
    },
    Key {
        section: "rabbitmq",
        name: "confirm_timeout_ms",
        form: Form::Whole { min: 100, max: 3_600_000 },
        list: false,
        default: Default::Is("30000"),
        meaning: "How long a confirm is awaited before the event goes again.",
    },
    Key {
        section: "rabbitmq",
        name: "heartbeat_s",
        form: Form::Whole { min: 1, max: 3600 },
        list: false,
        default: Default::Is("10"),
        meaning: "Heartbeat of the connection; a frozen broker is noticed after two.",
    },
    Key {
        section: "rabbitmq",
        name: "message_bytes_max",
        form: Form::Whole { min: 1, max: 536_870_912 },
        list: false,
        default: Default::Is("16777216"),
        meaning: "The largest body that is published; the broker's own `max_message_size` must not be below it.",
    },
    Key {
        section: "limits",
        name: "in_flight_events",
        form: Form::Whole { min: 1, max: 10_000_000 },
        list: false,
        default: Default::Is("16384"),
        meaning: "Events held in memory, waiting ones included; at the limit, reading stops.",
    },
    Key {
        section: "limits",
        name: "in_flight_bytes",
        form: Form::Whole { min: 1, max: 1 << 40 },
        list: false,
        default: Default::Is("67108864"),
        meaning: "The same in bytes; an event above it is admitted alone.",
    },
    Key {
        section: "limits",
        name: "events_per_second",
        form: Form::Whole { min: 0, max: 10_000_000 },
        list: false,
        default: Default::Is("0"),
        meaning: "The highest rate of publishing; 0 is no limit.",
    },
    Key {
        section: "limits",
        name: "drain_timeout_ms",
        form: Form::Whole { min: 0, max: 3_600_000 },
        list: false,
        default: Default::Is("10000"),
        meaning: "How long a whole shutdown may take.",
    },
    Key {
        section: "retry",
        name: "attempts",
        form: Form::Whole { min: 1, max: 1_000_000 },
        list: false,
        default: Default::Is("12"),
        meaning: "How often an event is tried before it is given up.",
    },
    Key {
        section: "retry",
        name: "first_ms",
        form: Form::Whole { min: 1, max: 3_600_000 },
        list: false,
        default: Default::Is("100"),
        meaning: "The first pause; each next is twice as long.",
    },
    Key {
        section: "retry",
        name: "max_ms",
        form: Form::Whole { min: 1, max: 3_600_000 },
        list: false,
        default: Default::Is("30000"),
        meaning: "The longest pause.",
    },
    Key {
        section: "retry",
        name: "jitter",
        form: Form::Fraction { min: 0.0, max: 1.0 },
        list: false,
        default: Default::Is("0.2"),
        meaning: "The share of each pause that is random.",
    },
    Key {
        section: "quarantine",
        name: "scope",
        form: Form::OneOf(&["key", "event", "halt"]),
        list: false,
        default: Default::Is("key"),
        meaning: "What an undeliverable event takes with it: its aggregate's later events, nothing, or everything.",
    },
    Key {
        section: "quarantine",
        name: "unrouted",
        form: Form::OneOf(&["key", "event", "accept"]),
        list: false,
        default: Default::Is("key"),
        meaning: "The same for an event that no queue is bound for; `accept` counts it as delivered.",
    },
    Key {
        section: "quarantine",
        name: "burst_events",
        form: Form::Whole { min: 1, max: 1_000_000 },
        list: false,
        default: Default::Is("50"),
        meaning: "So many undeliverable events without one success between them: hold.",
    },
    Key {
        section: "http",
        name: "listen",
        form: Form::Text { expected: "address:port, or empty for off", check: listen },
        list: false,
        default: Default::Is("127.0.0.1:9465"),
        meaning: "Where `/livez`, `/readyz`, `/metrics` and `/status` answer; empty is off, port 0 is any (logged).",
    },
    Key {
        section: "http",
        name: "stalled_after_ms",
        form: Form::Whole { min: 100, max: 86_400_000 },
        list: false,
        default: Default::Is("60000"),
        meaning: "An event owed for longer than this makes the relay not ready.",
    },
    Key {
        section: "log",
        name: "format",
        form: Form::OneOf(&["text", "json"]),
        list: false,
        default: Default::Is("text"),
        meaning: "Lines for people, or one JSON object a line.",
    },
    Key {
        section: "log",
        name: "level",
        form: Form::Text { expected: "off, error, warn, info, debug or trace", check: crate::logs::check },
        list: false,
        default: Default::Is("info"),
        meaning: "The level, and levels by target after it, such as `info,lapin=warn`.",
    },
];

/// Any text but none.
const TEXT: Form = Form::Text { expected: "text", check: not_empty };

/// An AMQP short string.
const SHORT: Form = Form::Text { expected: "at most 255 bytes", check: short };

impl Key {
    /// The key's full name, as `section.name`.
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Whether a value may hold a password.
    pub(crate) fn secret(&self) -> bool {
        matches!(self.form, Form::Url { .. })
    }

    /// Reads a variable's or a flag's text; the error says what is wrong and never holds a secret.
    pub(crate) fn read_text(&self, text: &str) -> Result<Value, String> {
        if !self.list {
            return self.form.read_text(text).map_err(|wrong| self.explain(&wrong, &format!("{text:?}")));
        }
        let items = split_list(text).into_iter().map(|item| self.form.read_text(item));
        items
            .collect::<Result<_, _>>()
            .map(Value::Array)
            .map_err(|wrong| self.explain(&wrong, &format!("{text:?}")))
    }

    /// Reads a value of the file in the same way; a list may be a single value there.
    pub(crate) fn read_toml(&self, value: &DeValue<'_>) -> Result<Value, String> {
        let shown = match value {
            DeValue::String(text) => format!("{text:?}"),
            _ => format!("one of type {}", value.type_str()),
        };
        match value {
            DeValue::Array(items) if self.list => {
                let items = items.iter().map(|item| self.form.read_toml(item.get_ref()));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            _ if self.list => self.form.read_toml(value).map(|value| Value::Array(vec![value])),
            _ => self.form.read_toml(value),
        }
        .map_err(|wrong| self.explain(&wrong, &shown))
    }

    fn explain(&self, wrong: &str, shown: &str) -> String {
        let expected = self.form.expected();
        let got = if self.secret() { String::new() } else { format!(", got {shown}") };
        let reason = if wrong.is_empty() { String::new() } else { format!("{wrong}; ") };
        format!("{reason}expected {expected}{got}")
    }
}

impl Form {
    /// What a value must look like, in words.
    pub(crate) fn expected(&self) -> String {
        match self {
            Form::Text { expected, .. } | Form::Url { expected, .. } => (*expected).to_owned(),
            Form::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Form::Fraction { min, max } => format!("a number from {min:?} to {max:?}"),
            Form::Switch => "true or false".to_owned(),
            Form::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// An empty error: nothing to add to [`Form::expected`].
    fn read_text(&self, text: &str) -> Result<Value, String> {
        match self {
            Form::Text { check, .. } | Form::Url { check, .. } => {
                check(text).map(|()| Value::String(text.to_owned()))
            }
            Form::Whole { min, max } => match text.trim().parse() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(Value::Integer(number)),
                _ => Err(String::new()),
            },
            Form::Fraction { min, max } => match text.trim().parse() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(Value::Float(number)),
                _ => Err(String::new()),
            },
            Form::Switch => text.trim().parse().map(Value::Boolean).map_err(|_| String::new()),
            Form::OneOf(words) if words.contains(&text) => Ok(Value::String(text.to_owned())),
            Form::OneOf(_) => Err(String::new()),
        }
    }

    fn read_toml(&self, value: &DeValue<'_>) -> Result<Value, String> {
        match (self, value) {
            (Form::Text { .. } | Form::Url { .. } | Form::OneOf(_), DeValue::String(text)) => {
                self.read_text(text)
            }
            (Form::Whole { .. } | Form::Fraction { .. }, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                self.read_text(number.as_str())
            }
            (Form::Fraction { .. }, DeValue::Float(number)) => self.read_text(number.as_str()),
            (Form::Switch, DeValue::Boolean(yes)) => Ok(Value::Boolean(*yes)),
            _ => Err(String::new()),
        }
    }
}

/// Splits at commas outside double quotes (which quote a table's name); no text is an empty list.
fn split_list(text: &str) -> Vec<&str> {
    let mut quoted = false;
    let items = text.split(|character| {
        quoted ^= character == '"';
        character == ',' && !quoted
    });
    let items: Vec<&str> = items.map(str::trim).collect();
    if items == [""] { Vec::new() } else { items }
}

fn not_empty(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) }
}

fn short(text: &str) -> Result<(), String> {
    if text.len() > 255 { Err(format!("it has {} bytes", text.len())) } else { Ok(()) }
}

/// PostgreSQL manual, "Replication Slots": "Slot names may only contain lower-case letters, numbers,
/// and the underscore character"; and `NAMEDATALEN`.
fn slot_name(text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let good = (1..=63).contains(&text.len()) && text.bytes().all(fits);
    if good { Ok(()) } else { Err(String::new()) }
}

fn publication_name(text: &str) -> Result<(), String> {
    let good = (1..=63).contains(&text.len()) && !text.contains(['"', '\'', '\\', '\0']);
    if good { Ok(()) } else { Err(String::new()) }
}

fn table_name(text: &str) -> Result<(), String> {
    super::table::read(text).map(|_| ())
}

fn template(text: &str) -> Result<(), String> {
    text.parse::<postrider_relay::RoutingKey>().map(|_| ()).map_err(|error| error.to_string())
}

fn postgres_url(text: &str) -> Result<(), String> {
    not_empty(text)
}

fn rabbitmq_url(text: &str) -> Result<(), String> {
    let known = text.starts_with("amqp://") || text.starts_with("amqps://");
    if known { Ok(()) } else { Err(String::new()) }
}

/// Names are resolved when the address is bound; here only the form counts.
fn listen(text: &str) -> Result<(), String> {
    let host_and_port = || {
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && !host.contains(':')).then_some(())?;
        port.parse::<u16>().ok()
    };
    let good = text.is_empty() || text.parse::<SocketAddr>().is_ok() || host_and_port().is_some();
    if good { Ok(()) } else { Err(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> &'static Key {
        KEYS.iter().find(|key| key.path() == path).expect("a key of this name")
    }

    #[test]
    fn a_value_is_read_or_the_error_says_what_is_expected() {
        for (path, text, read) in [
            ("rabbitmq.lanes", "8", Ok("8")),
            ("rabbitmq.lanes", " 8 ", Ok("8")),
            ("rabbitmq.lanes", "0", Err("expected a whole number from 1 to 256, got \"0\"")),
            ("rabbitmq.lanes", "", Err("expected a whole number from 1 to 256, got \"\"")),
            ("retry.jitter", "1", Ok("1.0")),
            ("retry.jitter", "1.1", Err("expected a number from 0.0 to 1.0, got \"1.1\"")),
            ("retry.jitter", "NaN", Err("expected a number from 0.0 to 1.0, got \"NaN\"")),
            ("rabbitmq.declare", "false", Ok("false")),
            ("rabbitmq.declare", "no", Err("expected true or false, got \"no\"")),
            ("log.format", "xml", Err("expected one of text, json, got \"xml\"")),
            ("postgres.slot", "Slot", Err("expected 1 to 63 of a-z, 0-9 and _, got \"Slot\"")),
            ("http.listen", "", Ok("\"\"")),
            ("http.listen", "localhost:0", Ok("\"localhost:0\"")),
            ("http.listen", "[::1]:9465", Ok("\"[::1]:9465\"")),
            ("http.listen", "9465", Err("expected address:port, or empty for off, got \"9465\"")),
            ("http.listen", "::1", Err("expected address:port, or empty for off, got \"::1\"")),
            ("outbox.table", "a.b, \"c,d\".e", Ok("[\"a.b\", '\"c,d\".e']")),
            ("rabbitmq.urls", "", Ok("[]")),
            ("rabbitmq.urls", "amqp://a,http://b:hunter2@c", Err("expected amqp:// or amqps:// URLs")),
        ] {
            let value = key(path).read_text(text).map(|value| value.to_string());
            assert_eq!(value, read.map(str::to_owned).map_err(str::to_owned), "{path}={text}");
        }
    }

    #[test]
    fn a_value_of_the_file_has_the_type_of_its_key() {
        for (path, toml, read) in [
            ("rabbitmq.lanes", "1_6", Ok("16")),
            ("rabbitmq.lanes", "'8'", Err("expected a whole number from 1 to 256, got \"8\"")),
            ("rabbitmq.lanes", "8.0", Err("expected a whole number from 1 to 256, got one of type float")),
            ("retry.jitter", "0", Ok("0.0")),
            ("rabbitmq.declare", "true", Ok("true")),
            ("rabbitmq.exchange", "true", Err("expected at most 255 bytes, got one of type boolean")),
            ("outbox.table", "'a.b'", Ok("[\"a.b\"]")),
            ("outbox.table", "['a.b', 'c.d']", Ok("[\"a.b\", \"c.d\"]")),
            (
                "outbox.table",
                "[1]",
                Err("expected schema.table, such as postrider.outbox, got one of type array"),
            ),
        ] {
            let parsed = DeValue::parse(toml).expect("TOML");
            let value = key(path).read_toml(parsed.get_ref()).map(|value| value.to_string());
            assert_eq!(value, read.map(str::to_owned).map_err(str::to_owned), "{path} = {toml}");
        }
    }
}
