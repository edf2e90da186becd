//! The URLs of the servers, every part percent-encoded.

use std::fmt::Write as _;

/// Postgres' URL of a database.
pub(crate) fn postgres(user: &str, password: &str, port: u16, database: &str) -> String {
    let [user, password, database] = [user, password, database].map(encoded);
    format!("postgres://{user}:{password}@127.0.0.1:{port}/{database}")
}

/// The URL of a vhost of RabbitMQ.
pub(crate) fn rabbitmq(
    scheme: &str,
    user: &str,
    password: &str,
    host: &str,
    port: u16,
    vhost: &str,
) -> String {
    let [user, password, vhost] = [user, password, vhost].map(encoded);
    format!("{scheme}://{user}:{password}@{host}:{port}/{vhost}")
}

/// Percent-encoded but for what RFC 3986 calls unreserved.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
