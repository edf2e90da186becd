//! The columns of an outbox table that become a message: their names, and anything kept by column.

/// One `T` for each column the mapping knows. With the default `T` these are the columns' names;
/// [`Columns::default`] has those of `postrider.outbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns<T = Box<str>> {
    /// The property `message_id`; required.
    pub id: T,
    /// Half of the aggregate's key; required.
    pub aggregate_type: T,
    /// The other half; required.
    pub aggregate_id: T,
    /// The property `type`; required.
    pub event_type: T,
    /// A header (int), and a placeholder of the routing key.
    pub event_version: T,
    /// The body; the column is required, NULL is an empty body.
    pub payload: T,
    /// The row's own headers, a flat JSON object.
    pub headers: T,
    /// The property `timestamp` and the header `occurred_at`.
    pub occurred_at: T,
    /// A header (long).
    pub aggregate_seq: T,
    /// The property `correlation_id`.
    pub correlation_id: T,
    /// A header.
    pub causation_id: T,
    /// A header.
    pub traceparent: T,
    /// Overrides the routing key for one event.
    pub routing_key: T,
    /// Overrides the exchange for one event.
    pub exchange: T,
    /// Overrides the content type for one event.
    pub content_type: T,
}

impl<T> Columns<T> {
    /// The same columns with what `f` makes of each, asked in declaration order.
    pub fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Columns<U> {
        Columns {
            id: f(&self.id),
            aggregate_type: f(&self.aggregate_type),
            aggregate_id: f(&self.aggregate_id),
            event_type: f(&self.event_type),
            event_version: f(&self.event_version),
            payload: f(&self.payload),
            headers: f(&self.headers),
            occurred_at: f(&self.occurred_at),
            aggregate_seq: f(&self.aggregate_seq),
            correlation_id: f(&self.correlation_id),
            causation_id: f(&self.causation_id),
            traceparent: f(&self.traceparent),
            routing_key: f(&self.routing_key),
            exchange: f(&self.exchange),
            content_type: f(&self.content_type),
        }
    }
}

impl Default for Columns {
    fn default() -> Self {
        Columns {
            id: "id",
            aggregate_type: "aggregate_type",
            aggregate_id: "aggregate_id",
            event_type: "event_type",
            event_version: "event_version",
            payload: "payload",
            headers: "headers",
            occurred_at: "occurred_at",
            aggregate_seq: "aggregate_seq",
            correlation_id: "correlation_id",
            causation_id: "causation_id",
            traceparent: "traceparent",
            routing_key: "routing_key",
            exchange: "exchange",
            content_type: "content_type",
        }
        .map(|&name| name.into())
    }
}
