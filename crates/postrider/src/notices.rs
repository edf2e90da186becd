//! What the core wants told, in the words of the log; never with a payload.

use postrider_relay::{HoldCause, Notice, Reason};
use tracing::{info, warn};

/// What an operator can do about a route without a queue.
const UNROUTED_HINT: &str = "bind a queue and run `postrider quarantine retry`; or set quarantine.unrouted: \
    key parks the later events of the aggregate behind it, event parks it alone, accept counts it as delivered; \
    or let the broker keep such messages: \
    rabbitmqctl set_policy unrouted '^postrider$' '{\"alternate-exchange\":\"unrouted\"}' --apply-to exchanges, \
    with a queue bound to the fanout exchange \"unrouted\"";

/// Writes one notice to the log.
pub(crate) fn tell(notice: &Notice) {
    match notice {
        Notice::Quarantined { position, reason, detail, followers } => {
            warn!(%position, %reason, followers, "event quarantined: {detail}");
        }
        Notice::Held { position, reason, detail, cause } => {
            let why = hold(*cause);
            warn!(%position, %reason, "event held ({why}), its aggregate waits: {detail}");
        }
        Notice::Resumed => info!("a delivery has ended the hold"),
        Notice::Released { position } => info!(%position, "event delivered that was held"),
        Notice::PutBack { position, reason, detail } => {
            warn!(%position, %reason, "event from the quarantine parked again: {detail}");
        }
        Notice::BadRoute { exchange, routing_key, reason, settled } => {
            let (exchange, routing_key) = (&**exchange, &**routing_key);
            match (reason, settled) {
                (Reason::Unrouted, false) => {
                    warn!(
                        exchange,
                        routing_key, "no queue is bound for this route; its events wait and are tried again"
                    );
                }
                (Reason::Unrouted, true) => {
                    warn!(
                        exchange,
                        routing_key, "given up on this route until a queue is bound: {UNROUTED_HINT}"
                    );
                }
                (_, false) => warn!(
                    exchange,
                    routing_key,
                    "the broker does not confirm events of this route (a queue without a majority, say); \
                     they wait and are tried again"
                ),
                (_, true) => warn!(
                    exchange,
                    routing_key, "given up on this route until the broker confirms its events again"
                ),
            }
        }
        Notice::Followed { id, verb, rows } => info!(request = id, rows, "followed a request to {verb}"),
        Notice::BadCommand { position, why } => {
            warn!(%position, "passed over a row of postrider.command: {why}");
        }
        Notice::HeaderDropped { name } => {
            warn!(name, "header left out of messages: the name is Postrider's own");
        }
        Notice::UnknownMessage { letter } => {
            warn!(
                letter,
                "the stream has messages of a type that this version does not know; they are skipped"
            );
        }
    }
}

/// Why the relay holds, for people.
pub(crate) fn hold(cause: HoldCause) -> &'static str {
    match cause {
        HoldCause::Burst => "quarantine.burst_events undeliverable events came without one delivery between",
        HoldCause::Halt => "quarantine.scope is halt",
    }
}
