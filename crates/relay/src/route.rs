//! The routing key template, such as `{aggregate_type}.{event_type}`.

use std::fmt;
use std::str::FromStr;

/// A parsed `rabbitmq.routing_key`: text with placeholders; `{{` and `}}` stand for braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingKey {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Field(Placeholder),
}

/// A column that a routing key can be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    AggregateType,
    AggregateId,
    EventType,
    EventVersion,
}

/// What the template is filled from: one event's columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteFields<'a> {
    pub(crate) aggregate_type: &'a str,
    pub(crate) aggregate_id: &'a str,
    pub(crate) event_type: &'a str,
    /// `None` where the row has none: a template that asks for it cannot be filled.
    pub(crate) event_version: Option<i32>,
}

/// The template cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingKeyError {
    /// No such placeholder.
    #[error("read the routing key: {{{0}}} is unknown, allowed are {ALLOWED}")]
    Unknown(String),
    /// A `{` without its `}`.
    #[error("read the routing key: the brace at byte {0} is not closed (write {{{{ for a brace)")]
    Unclosed(usize),
    /// A `}` without its `{`.
    #[error("read the routing key: the brace at byte {0} closes nothing (write }}}} for a brace)")]
    Unopened(usize),
}

const ALLOWED: &str = "{aggregate_type}, {aggregate_id}, {event_type} and {event_version}";

impl RoutingKey {
    /// The routing key of one event, or `None` if it asks for a version that the event lacks.
    pub(crate) fn fill(&self, fields: RouteFields<'_>) -> Option<String> {
        let mut key = String::with_capacity(64);
        for part in &self.parts {
            match part {
                Part::Text(text) => key.push_str(text),
                Part::Field(Placeholder::AggregateType) => key.push_str(fields.aggregate_type),
                Part::Field(Placeholder::AggregateId) => key.push_str(fields.aggregate_id),
                Part::Field(Placeholder::EventType) => key.push_str(fields.event_type),
                Part::Field(Placeholder::EventVersion) => key.push_str(&fields.event_version?.to_string()),
            }
        }
        Some(key)
    }
}

impl Default for RoutingKey {
    /// `{aggregate_type}.{event_type}`.
    fn default() -> Self {
        RoutingKey {
            parts: vec![
                Part::Field(Placeholder::AggregateType),
                Part::Text(".".into()),
                Part::Field(Placeholder::EventType),
            ],
        }
    }
}

impl FromStr for RoutingKey {
    type Err = RoutingKeyError;

    fn from_str(template: &str) -> Result<Self, RoutingKeyError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(brace) = rest.find(['{', '}']) {
            let at = template.len() - rest.len() + brace;
            text.push_str(&rest[..brace]);
            rest = &rest[brace..];
            if let Some(after) = rest.strip_prefix("{{") {
                text.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                text.push('}');
                rest = after;
            } else if rest.starts_with('}') {
                return Err(RoutingKeyError::Unopened(at));
            } else {
                let end = rest.find('}').ok_or(RoutingKeyError::Unclosed(at))?;
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text).into()));
                }
                parts.push(Part::Field(rest[1..end].parse()?));
                rest = &rest[end + 1..];
            }
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text.into()));
        }
        Ok(RoutingKey { parts })
    }
}

impl fmt::Display for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}")),
            Part::Field(field) => write!(f, "{{{}}}", field.as_str()),
        })
    }
}

impl Placeholder {
    fn as_str(self) -> &'static str {
        match self {
            Placeholder::AggregateType => "aggregate_type",
            Placeholder::AggregateId => "aggregate_id",
            Placeholder::EventType => "event_type",
            Placeholder::EventVersion => "event_version",
        }
    }
}

impl FromStr for Placeholder {
    type Err = RoutingKeyError;

    fn from_str(name: &str) -> Result<Self, RoutingKeyError> {
        use Placeholder::{AggregateId, AggregateType, EventType, EventVersion};
        [AggregateType, AggregateId, EventType, EventVersion]
            .into_iter()
            .find(|placeholder| placeholder.as_str() == name)
            .ok_or_else(|| RoutingKeyError::Unknown(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: RouteFields<'_> = RouteFields {
        aggregate_type: "order",
        aggregate_id: "42",
        event_type: "order placed",
        event_version: Some(3),
    };

    #[test]
    fn a_template_is_filled_from_the_event() {
        let check = |template: &str, expected: &str| {
            let key: RoutingKey = template.parse().unwrap();
            assert_eq!(key.fill(ORDER).as_deref(), Some(expected), "{template}");
            assert_eq!(key.to_string(), template);
        };
        check("{aggregate_type}.{event_type}", "order.order placed");
        check("{aggregate_id}{event_version}", "423");
        check("", "");
        check("plain", "plain");
        check("{{{aggregate_type}}}", "{order}");
        check("{{aggregate_type}}", "{aggregate_type}");
        check("é{aggregate_id}ü", "é42ü");
        assert_eq!("{aggregate_type}.{event_type}".parse(), Ok(RoutingKey::default()));
    }

    #[test]
    fn a_template_that_wants_a_version_cannot_do_without() {
        let key: RoutingKey = "v{event_version}".parse().unwrap();
        assert_eq!(key.fill(RouteFields { event_version: None, ..ORDER }), None);
    }

    #[test]
    fn a_template_that_cannot_be_read_says_where() {
        let check = |template: &str, expected: &str| {
            assert_eq!(template.parse::<RoutingKey>().unwrap_err().to_string(), expected, "{template}");
        };
        check(
            "a.{aggregat_type}",
            "read the routing key: {aggregat_type} is unknown, allowed are \
             {aggregate_type}, {aggregate_id}, {event_type} and {event_version}",
        );
        check(
            "é{event_type",
            "read the routing key: the brace at byte 2 is not closed (write {{ for a brace)",
        );
        check("a}b", "read the routing key: the brace at byte 1 closes nothing (write }} for a brace)");
        check("{", "read the routing key: the brace at byte 0 is not closed (write {{ for a brace)");
        check(
            "{}",
            "read the routing key: {} is unknown, allowed are \
             {aggregate_type}, {aggregate_id}, {event_type} and {event_version}",
        );
    }
}
