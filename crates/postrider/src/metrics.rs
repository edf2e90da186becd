//! The metrics: one list of names, and the only place where a series is made.
//!
//! Every series is there from the start, so that a rate has a zero to start from. Counters that the
//! core keeps are taken over as they stand; only the histograms and the sessions are counted here.

use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use postrider_rabbitmq::OutageKind;
use postrider_relay::{Delivered, Ignored, Reason};

use crate::health::{Health, NotReady};

mod list;

use list::{
    DELIVERY_SECONDS, HEADERS_DROPPED, HELD, IGNORED, IN_FLIGHT_BYTES, IN_FLIGHT_EVENTS,
    OLDEST_UNCONFIRMED_SECONDS, PUBLISH_SECONDS, PUBLISHED, QUARANTINE_EVENTS, QUARANTINED, READY, RETRIED,
    SESSIONS, SLOT_LAG_BYTES, SLOT_RETAINED_BYTES, SLOT_SAFE_BYTES, UNREPORTED_EVENTS, UNROUTED,
};
pub(crate) use list::{Kind, METRICS, Metric};

/// The two peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Postgres,
    Broker,
}

impl Side {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Side::Postgres => "postgres",
            Side::Broker => "broker",
        }
    }
}

/// Why a connection ended or did not come about: the words [`Metrics::session`] is called with.
fn session_reasons() -> impl Iterator<Item = (Side, &'static str)> {
    use OutageKind::{Broken, Closed, Exchange, Login, Silent, Tls, Unreachable, Vhost};
    let broker = [Unreachable, Tls, Login, Vhost, Exchange, Silent, Closed, Broken];
    let postgres = ["outage", "standby"].map(|reason| (Side::Postgres, reason));
    postgres.into_iter().chain(broker.map(|kind| (Side::Broker, kind.as_str())))
}

/// The series, and the page they are read from.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    page: PrometheusHandle,
    publish_seconds: Histogram,
    delivery_seconds: Histogram,
    /// What the histograms have taken since their last upkeep.
    taken: AtomicUsize,
}

/// A histogram keeps what it takes until its upkeep: after so many, that is done.
const UPKEEP_EVERY: usize = 8192;

impl Metrics {
    /// Every series at zero, labelled with the slot.
    pub(crate) fn new(slot: &str) -> Self {
        let mut builder = PrometheusBuilder::new().add_global_label("slot", slot);
        for metric in METRICS {
            if let Kind::Histogram { buckets } = metric.kind {
                let name = Matcher::Full(metric.name.to_owned());
                builder = builder.set_buckets_for_metric(name, buckets).expect("there are buckets");
            }
        }
        let recorder = builder.build_recorder();
        let page = recorder.handle();
        let histogram = |metric| with_local_recorder(&recorder, || new_histogram(metric));
        let (publish_seconds, delivery_seconds) = (histogram(&PUBLISH_SECONDS), histogram(&DELIVERY_SECONDS));
        let metrics = Self { recorder, page, publish_seconds, delivery_seconds, taken: AtomicUsize::new(0) };
        metrics.describe();
        metrics.zero();
        metrics
    }

    /// Events of one window were confirmed together.
    pub(crate) fn delivered(&self, delivered: &Delivered) {
        let events = delivered.delivery.len();
        self.publish_seconds.record_many(delivered.publish, events);
        for delivery in &delivered.delivery {
            self.delivery_seconds.record(*delivery);
        }
        if self.taken.fetch_add(events, Ordering::Relaxed) + events >= UPKEEP_EVERY {
            self.taken.store(0, Ordering::Relaxed);
            self.page.run_upkeep();
        }
    }

    /// A connection ended or did not come about.
    pub(crate) fn session(&self, side: Side, reason: &'static str) {
        let labels = [("side", side.as_str()), ("reason", reason)];
        self.with_counter(&SESSIONS, &labels, |counter| counter.increment(1));
    }

    /// The page, with gauges and the core's counters as `health` has them.
    pub(crate) fn render(&self, health: &Health) -> String {
        self.update(health);
        self.page.render()
    }

    fn update(&self, health: &Health) {
        for (reason, value) in ready(health) {
            self.set(&READY, &[("reason", reason)], value);
        }
        if let Some(relay) = &health.relay {
            let counters = &relay.counters;
            self.total(&PUBLISHED, &[], counters.published);
            self.total(&HEADERS_DROPPED, &[], counters.headers_dropped);
            self.total(&UNROUTED, &[], counters.unrouted);
            let by_reason = [
                (&RETRIED, &counters.retried),
                (&HELD, &counters.held),
                (&QUARANTINED, &counters.quarantined),
            ];
            for (metric, counts) in by_reason {
                for (reason, count) in counts {
                    self.total(metric, &[("reason", reason.as_str())], *count);
                }
            }
            for (op, count) in &counters.ignored {
                self.total(&IGNORED, &[("op", op)], *count);
            }
            self.set(&IN_FLIGHT_EVENTS, &[], float(relay.in_flight_events as u64));
            self.set(&IN_FLIGHT_BYTES, &[], float(relay.in_flight_bytes as u64));
            self.set(&OLDEST_UNCONFIRMED_SECONDS, &[], relay.oldest.unwrap_or_default().as_secs_f64());
            self.set(&UNREPORTED_EVENTS, &[], float(relay.unreported_events));
            self.set(&QUARANTINE_EVENTS, &[], float(relay.quarantine_events));
        }
        if let Some(slot) = &health.slot {
            let figures = [
                (&SLOT_LAG_BYTES, slot.lag_bytes().map(float)),
                (&SLOT_RETAINED_BYTES, slot.retained_bytes().map(float)),
                (&SLOT_SAFE_BYTES, Some(slot.safe_bytes.map_or(f64::INFINITY, signed_float))),
            ];
            for (metric, value) in figures {
                if let Some(value) = value {
                    self.set(metric, &[], value);
                }
            }
        }
    }

    fn describe(&self) {
        with_local_recorder(&self.recorder, || {
            for metric in METRICS {
                match metric.kind {
                    Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
                    Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
                    Kind::Histogram { .. } => metrics::describe_histogram!(metric.name, metric.help),
                }
            }
        });
    }

    fn zero(&self) {
        for metric in [&PUBLISHED, &UNROUTED, &HEADERS_DROPPED] {
            self.total(metric, &[], 0);
        }
        for reason in Reason::ALL {
            for metric in [&RETRIED, &HELD, &QUARANTINED] {
                self.total(metric, &[("reason", reason.as_str())], 0);
            }
        }
        for op in Ignored::WORDS {
            self.total(&IGNORED, &[("op", op)], 0);
        }
        for (side, reason) in session_reasons() {
            self.total(&SESSIONS, &[("side", side.as_str()), ("reason", reason)], 0);
        }
        for metric in
            METRICS.iter().filter(|metric| matches!(metric.kind, Kind::Gauge) && metric.labels.is_empty())
        {
            self.set(metric, &[], 0.0);
        }
        // Unknown is not "nothing left".
        self.set(&SLOT_SAFE_BYTES, &[], f64::INFINITY);
        self.set(&READY, &[("reason", "ready")], 0.0);
        for reason in NotReady::ALL {
            self.set(&READY, &[("reason", reason.as_str())], 0.0);
        }
    }

    fn total(&self, metric: &Metric, labels: &[(&'static str, &'static str)], total: u64) {
        self.with_counter(metric, labels, |counter| counter.absolute(total));
    }

    fn with_counter(
        &self,
        metric: &Metric,
        labels: &[(&'static str, &'static str)],
        count: impl Fn(Counter),
    ) {
        with_local_recorder(&self.recorder, || count(new_counter(metric, labels)));
    }

    fn set(&self, metric: &Metric, labels: &[(&'static str, &'static str)], value: f64) {
        with_local_recorder(&self.recorder, || new_gauge(metric, labels).set(value));
    }
}

/// The states and which of them is the present one.
fn ready(health: &Health) -> impl Iterator<Item = (&'static str, f64)> {
    let present = health.ready.map_or_else(NotReady::as_str, |()| "ready");
    let states = NotReady::ALL.map(NotReady::as_str);
    ["ready"].into_iter().chain(states).map(move |state| (state, if state == present { 1.0 } else { 0.0 }))
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn signed_float(number: i64) -> f64 {
    number as f64
}

#[expect(clippy::disallowed_macros, reason = "this is the one file that makes series")]
fn new_counter(metric: &Metric, labels: &[(&'static str, &'static str)]) -> Counter {
    metrics::counter!(metric.name, labels)
}

#[expect(clippy::disallowed_macros, reason = "this is the one file that makes series")]
fn new_gauge(metric: &Metric, labels: &[(&'static str, &'static str)]) -> Gauge {
    metrics::gauge!(metric.name, labels)
}

#[expect(clippy::disallowed_macros, reason = "this is the one file that makes series")]
fn new_histogram(metric: &Metric) -> Histogram {
    metrics::histogram!(metric.name)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use postrider_relay::{Broker, Lsn, Snapshot};

    use super::*;
    use crate::health::SlotFigures;

    /// The samples of a page: name with labels, and value.
    fn samples(page: &str) -> BTreeMap<&str, &str> {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.rsplit_once(' ').expect("a sample")).collect()
    }

    fn starting() -> Health {
        Health { ready: Err(NotReady::Starting), detail: String::new(), relay: None, slot: None }
    }

    #[test]
    fn every_series_is_there_from_the_start() {
        let page = Metrics::new("mine").render(&starting());
        let samples = samples(&page);
        for metric in METRICS {
            assert!(
                page.contains(&format!("# HELP {} {}\n", metric.name, metric.help)),
                "{}: {page}",
                metric.name
            );
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram { .. } => "histogram",
            };
            assert!(page.contains(&format!("# TYPE {} {kind}\n", metric.name)), "{}: {page}", metric.name);
        }
        let names: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(names.len(), METRICS.len(), "nothing that is not on the list: {names:?}");
        assert!(samples.keys().all(|series| series.contains("slot=\"mine\"")), "{page}");
        assert_eq!(samples["postrider_events_retried_total{slot=\"mine\",reason=\"nacked\"}"], "0");
        assert_eq!(samples["postrider_delivery_seconds_count{slot=\"mine\"}"], "0");
        assert_eq!(samples["postrider_slot_safe_bytes{slot=\"mine\"}"], "inf");
        assert_eq!(samples["postrider_ready{slot=\"mine\",reason=\"starting\"}"], "1");
        assert_eq!(samples["postrider_ready{slot=\"mine\",reason=\"ready\"}"], "0");
        for series in ["side=\"postgres\",reason=\"standby\"", "side=\"broker\",reason=\"vhost\""] {
            assert_eq!(samples[&*format!("postrider_sessions_total{{slot=\"mine\",{series}}}")], "0");
        }
    }

    #[test]
    fn the_page_shows_what_the_core_and_the_server_tell() {
        let metrics = Metrics::new("s");
        let mut counters =
            postrider_relay::Counters { published: 7, headers_dropped: 2, ..Default::default() };
        counters.retried.insert(Reason::Nacked, 3);
        counters.held.insert(Reason::Unrouted, 1);
        counters.quarantined.insert(Reason::BadHeader, 8);
        counters.ignored.insert("delete", 5);
        let relay = Snapshot {
            broker: Broker::Down,
            in_flight_events: 11,
            in_flight_bytes: 1300,
            aggregates: 4,
            held_events: 1,
            hold: None,
            quarantine_away: false,
            quarantine_events: 9,
            parked_aggregates: 2,
            bad_routes: 0,
            memory_bytes: 1300,
            oldest: Some(Duration::from_millis(1500)),
            unreported_events: 6,
            reached: None,
            reported: None,
            windows: 0,
            strays: 0,
            saturated: false,
            draining: false,
            counters,
        };
        let slot = SlotFigures {
            wal_lsn: Lsn(1000),
            confirmed_flush_lsn: Some(Lsn(900)),
            restart_lsn: Some(Lsn(600)),
            safe_bytes: Some(-1),
        };
        metrics.delivered(&Delivered {
            publish: Duration::from_millis(2),
            delivery: vec![Duration::from_millis(3), Duration::from_secs(7200)],
        });
        metrics.session(Side::Broker, "broken");
        metrics.session(Side::Broker, "broken");
        let health = Health { ready: Ok(()), detail: String::new(), relay: Some(relay), slot: Some(slot) };
        let first = metrics.render(&health);
        assert_eq!(
            samples(&first),
            samples(&metrics.render(&health)),
            "a second scrape counts nothing twice"
        );
        let samples = samples(&first);
        for (series, value) in [
            ("postrider_events_published_total{slot=\"s\"}", "7"),
            ("postrider_headers_dropped_total{slot=\"s\"}", "2"),
            ("postrider_events_retried_total{slot=\"s\",reason=\"nacked\"}", "3"),
            ("postrider_events_held_total{slot=\"s\",reason=\"unrouted\"}", "1"),
            ("postrider_events_quarantined_total{slot=\"s\",reason=\"bad_header\"}", "8"),
            ("postrider_quarantine_events{slot=\"s\"}", "9"),
            ("postrider_events_ignored_total{slot=\"s\",op=\"delete\"}", "5"),
            ("postrider_in_flight_events{slot=\"s\"}", "11"),
            ("postrider_in_flight_bytes{slot=\"s\"}", "1300"),
            ("postrider_oldest_unconfirmed_seconds{slot=\"s\"}", "1.5"),
            ("postrider_unreported_events{slot=\"s\"}", "6"),
            ("postrider_slot_lag_bytes{slot=\"s\"}", "100"),
            ("postrider_slot_retained_bytes{slot=\"s\"}", "400"),
            ("postrider_slot_safe_bytes{slot=\"s\"}", "-1"),
            ("postrider_ready{slot=\"s\",reason=\"ready\"}", "1"),
            ("postrider_ready{slot=\"s\",reason=\"starting\"}", "0"),
            ("postrider_sessions_total{slot=\"s\",side=\"broker\",reason=\"broken\"}", "2"),
            ("postrider_publish_seconds_count{slot=\"s\"}", "2"),
            ("postrider_publish_seconds_bucket{slot=\"s\",le=\"0.001\"}", "0"),
            ("postrider_publish_seconds_bucket{slot=\"s\",le=\"0.0025\"}", "2"),
            ("postrider_delivery_seconds_bucket{slot=\"s\",le=\"0.005\"}", "1"),
            ("postrider_delivery_seconds_bucket{slot=\"s\",le=\"3600\"}", "1"),
            ("postrider_delivery_seconds_bucket{slot=\"s\",le=\"+Inf\"}", "2"),
        ] {
            assert_eq!(samples.get(series), Some(&value), "{series}: {first}");
        }
    }
}
