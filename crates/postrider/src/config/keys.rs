//! The one list of keys: the file, the variables, the flags, the example and the README read it.

use std::net::SocketAddr;

use super::key::{Default, Form, Key};

/// Every key there is, by section, in the order of the README.
pub(crate) const KEYS: &[Key] = &[
    Key {
        section: "postgres",
        name: "url",
        form: Form::Url { expected: "a connection string as libpq takes it", check: postgres_url },
        list: false,
        default: Default::Unset(
            "postgres://postrider_relay@localhost:5432/shop?sslmode=verify-full&sslrootcert=system",
        ),
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
        form: Form::Text { expected: "a name of 1 to 63 bytes", check: publication_name },
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
        form: Form::Text { expected: "schema.table, quoted as SQL wants it", check: table_name },
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
    let good = (1..=63).contains(&text.len()) && !text.contains('\0');
    if good { Ok(()) } else { Err(String::new()) }
}

fn table_name(text: &str) -> Result<(), String> {
    text.parse::<postrider_postgres::TableName>().map(drop).map_err(|_| String::new())
}

fn template(text: &str) -> Result<(), String> {
    text.parse::<postrider_relay::RoutingKey>().map(drop).map_err(wrong)
}

fn postgres_url(text: &str) -> Result<(), String> {
    postrider_postgres::Server::parse(text).map(drop).map_err(wrong)
}

fn rabbitmq_url(text: &str) -> Result<(), String> {
    postrider_rabbitmq::Endpoint::parse(text).map(drop).map_err(wrong)
}

/// What is wrong, without "read the …:" in front: the key is named already.
fn wrong(error: impl std::error::Error) -> String {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((before, wrong)) if before.starts_with("read the ") => wrong.to_owned(),
        _ => text,
    }
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
