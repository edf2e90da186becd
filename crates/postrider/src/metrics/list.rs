//! Every metric by name, kind, labels and help; the README's table is checked against it.

/// One metric.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Its labels besides `slot`.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

/// What a metric's value does.
#[derive(Debug)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram { buckets: &'static [f64] },
}

/// Every metric there is, in the order of the README.
pub(crate) const METRICS: &[Metric] = &[
    PUBLISHED,
    RETRIED,
    HELD,
    QUARANTINED,
    UNROUTED,
    IGNORED,
    HEADERS_DROPPED,
    PUBLISH_SECONDS,
    DELIVERY_SECONDS,
    IN_FLIGHT_EVENTS,
    IN_FLIGHT_BYTES,
    OLDEST_UNCONFIRMED_SECONDS,
    UNREPORTED_EVENTS,
    SLOT_LAG_BYTES,
    SLOT_RETAINED_BYTES,
    SLOT_SAFE_BYTES,
    QUARANTINE_EVENTS,
    READY,
    SESSIONS,
];

pub(super) const PUBLISHED: Metric =
    counter("postrider_events_published_total", &[], "Events confirmed by the broker and routed to a queue.");
pub(super) const RETRIED: Metric =
    counter("postrider_events_retried_total", &["reason"], "Tries that failed and are followed by another.");
pub(super) const HELD: Metric = counter(
    "postrider_events_held_total",
    &["reason"],
    "Events that should be in quarantine, and wait because the relay holds (quarantine.burst_events, scope halt).",
);
pub(super) const QUARANTINED: Metric = counter(
    "postrider_events_quarantined_total",
    &["reason"],
    "Events stored in quarantine instead of sent.",
);
pub(super) const UNROUTED: Metric = counter(
    "postrider_events_unrouted_total",
    &[],
    "Events that no queue was bound for, accepted by quarantine.unrouted = accept.",
);
pub(super) const IGNORED: Metric =
    counter("postrider_events_ignored_total", &["op"], "What the slot sends and is no event, by kind.");
pub(super) const HEADERS_DROPPED: Metric = counter(
    "postrider_headers_dropped_total",
    &[],
    "Row headers left out because their name is Postrider's.",
);
pub(super) const PUBLISH_SECONDS: Metric = Metric {
    name: "postrider_publish_seconds",
    kind: Kind::Histogram {
        buckets: &[
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
        ],
    },
    labels: &[],
    help: "From the hand-over to the broker to the confirm.",
};
pub(super) const DELIVERY_SECONDS: Metric = Metric {
    name: "postrider_delivery_seconds",
    kind: Kind::Histogram {
        buckets: &[
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
            3600.0,
        ],
    },
    labels: &[],
    help: "From the commit to the confirm.",
};
pub(super) const IN_FLIGHT_EVENTS: Metric =
    gauge("postrider_in_flight_events", &[], "Events read and not yet confirmed; waiting ones count.");
pub(super) const IN_FLIGHT_BYTES: Metric =
    gauge("postrider_in_flight_bytes", &[], "What those events hold in memory.");
pub(super) const OLDEST_UNCONFIRMED_SECONDS: Metric = gauge(
    "postrider_oldest_unconfirmed_seconds",
    &[],
    "The age of the oldest transaction with an unconfirmed event; 0 when nothing is owed.",
);
pub(super) const UNREPORTED_EVENTS: Metric = gauge(
    "postrider_unreported_events",
    &[],
    "Events confirmed but not yet reported to Postgres: a crash now would send them again.",
);
pub(super) const SLOT_LAG_BYTES: Metric = gauge(
    "postrider_slot_lag_bytes",
    &[],
    "How far the slot's confirmed position is behind the server's log.",
);
pub(super) const SLOT_RETAINED_BYTES: Metric =
    gauge("postrider_slot_retained_bytes", &[], "How much log the server keeps for the slot.");
pub(super) const SLOT_SAFE_BYTES: Metric = gauge(
    "postrider_slot_safe_bytes",
    &[],
    "How much may still be written before the slot is lost; +Inf without max_slot_wal_keep_size.",
);
pub(super) const QUARANTINE_EVENTS: Metric =
    gauge("postrider_quarantine_events", &[], "Events in quarantine that are parked or being sent.");
pub(super) const READY: Metric = gauge(
    "postrider_ready",
    &["reason"],
    "1 for the state the relay is in, 0 for all others; reason \"ready\", or why it is not, as in /readyz.",
);
pub(super) const SESSIONS: Metric = counter(
    "postrider_sessions_total",
    &["side", "reason"],
    "Outages of Postgres and of the broker as the log tells them: once for each reason, however many attempts.",
);

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}
