//! The broker's side: whether it lets us in, and whether the exchange is there.
//!
//! It only looks: the exchange is asked for, not declared. Whether a queue is bound cannot be asked over
//! AMQP; an event without one is returned, and says so then.

use std::time::Duration;

use postrider_rabbitmq::{Event, Outage, OutageKind, Publisher, Settings, State};
use tokio::time::{Instant, timeout_at};

use super::{Finding, Level};
use crate::config::{Config, RabbitMq};
use crate::metrics::Side;
use crate::peers;

/// How long all endpoints together may take.
const LOOK_LIMIT: Duration = Duration::from_secs(15);
/// How long the goodbye may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Never fails: that the broker cannot be asked is a finding.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    let settings = match peers::publisher(config) {
        Ok(settings) => settings,
        Err(error) => return vec![finding(Level::Error, format!("failed to {error}"), "")],
    };
    let endpoints = settings.endpoints.len();
    let mut publisher = Publisher::start(Settings { declare: false, lanes: 1, ..settings });
    let until = Instant::now() + LOOK_LIMIT;
    let mut findings = Vec::new();
    // Each endpoint is tried once, until one is ready.
    while findings.len() < endpoints {
        match timeout_at(until, publisher.next()).await {
            Ok(Event::State(State::Down(outage))) => findings.push(judge(&outage, &config.rabbitmq)),
            Ok(Event::State(State::Ready(_))) => {
                let what =
                    format!("the broker takes messages for the exchange {:?}", config.rabbitmq.exchange);
                findings.push(finding(Level::Ok, what, ""));
                break;
            }
            Ok(Event::State(State::Blocked { reason })) => {
                let why = format!("it takes no messages until its alarm is over ({reason})");
                findings.push(
                    finding(Level::Warning, "the broker is blocked", why).cure("rabbitmqctl list_alarms"),
                );
                break;
            }
            Ok(Event::Answer(_)) => unreachable!("nothing was published"),
            Err(_) => {
                findings.push(finding(Level::Error, "the broker does not answer", "see rabbitmq.url"));
                break;
            }
        }
    }
    publisher.close(CLOSE_LIMIT).await;
    findings
}

/// What follows from an outage, and what mends it.
fn judge(outage: &Outage, rabbitmq: &RabbitMq) -> Finding {
    let failed = format!("failed to {outage}");
    let exchange = &rabbitmq.exchange;
    match outage.kind {
        OutageKind::Exchange if rabbitmq.declare => {
            let why =
                format!("run declares it as a durable {} exchange, if it is missing", rabbitmq.exchange_type);
            finding(Level::Warning, failed, why)
        }
        OutageKind::Exchange => {
            finding(Level::Error, failed, "rabbitmq.declare is false, so somebody else has to declare it")
                .cure(format!(
                    "rabbitmqadmin declare exchange name={exchange} type={} durable=true",
                    rabbitmq.exchange_type
                ))
        }
        OutageKind::Vhost => finding(Level::Error, failed, "the virtual host is in the path of the URL")
            .cure("rabbitmqctl add_vhost VHOST")
            .cure("rabbitmqctl set_permissions --vhost VHOST USER '.*' '.*' '.*'"),
        OutageKind::Login => finding(Level::Error, failed, "user or password is wrong")
            .cure("rabbitmqctl change_password USER PASSWORD"),
        OutageKind::Tls => finding(Level::Error, failed, "see cacertfile, certfile and keyfile in the URL"),
        OutageKind::Unreachable => {
            finding(Level::Error, failed, "see that the broker runs and that the port is right")
        }
        OutageKind::Silent | OutageKind::Closed | OutageKind::Broken => finding(Level::Error, failed, ""),
    }
}

fn finding(level: Level, what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding::new(Side::Broker, level, what, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn a_missing_exchange_is_an_error_only_if_nobody_declares_it() {
        let missing = Outage { kind: OutageKind::Exchange, reason: "find exchange \"x\": 404".to_owned() };
        for (declare, level, cures) in [("true", Level::Warning, 0), ("false", Level::Error, 1)] {
            let set = vec![format!("rabbitmq.declare={declare}"), "rabbitmq.exchange=x".to_owned()];
            let config = Sources { set, ..Sources::default() }.load().expect("load").config;
            let found = judge(&missing, &config.rabbitmq);
            assert_eq!((found.level, found.cure.len()), (level, cures));
            assert_eq!(found.what, "failed to find exchange \"x\": 404");
        }
    }
}
