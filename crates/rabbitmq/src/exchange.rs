//! The exchange is there, of the type we publish to, before anything is published.

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};

use crate::outage::{Outage, OutageKind, server_word, words};
use crate::settings::Settings;

/// Declares the exchange, or checks that it exists; the default exchange always does, and may not be declared
/// (RabbitMQ manual, "Exchanges").
pub(crate) async fn ensure(connection: &lapin::Connection, settings: &Settings) -> Result<(), Outage> {
    if settings.exchange.is_empty() {
        return Ok(());
    }
    let Ok(name) = ShortString::try_new(settings.exchange.as_str()) else {
        let reason = "declare the exchange: its name is longer than 255 bytes".to_owned();
        return Err(Outage::new(OutageKind::Exchange, reason));
    };
    let step = if settings.declare {
        format!("declare exchange {:?} as durable {}", settings.exchange, settings.exchange_type)
    } else {
        format!("find exchange {:?}", settings.exchange)
    };
    let options = ExchangeDeclareOptions { durable: true, passive: !settings.declare, ..Default::default() };
    let declared = async {
        // A channel of its own: a refusal closes it.
        let channel = connection.create_channel().await?;
        channel.exchange_declare(name, kind(&settings.exchange_type), options, FieldTable::default()).await?;
        channel.close(200, ShortString::default()).await
    };
    declared.await.map_err(|error: lapin::Error| {
        let kind = if server_word(&error).is_some() { OutageKind::Exchange } else { OutageKind::Broken };
        Outage::new(kind, format!("{step}: {}", words(&error)))
    })
}

fn kind(name: &str) -> ExchangeKind {
    match name {
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "headers" => ExchangeKind::Headers,
        "topic" => ExchangeKind::Topic,
        other => ExchangeKind::Custom(other.to_owned()),
    }
}
