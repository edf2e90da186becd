//! The header table: the names that are ours, and what a row may add.
//!
//! No header of a row can stand in for one of ours: returns are matched by `postrider_position`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::message::HeaderValue;

/// The headers of a message under construction.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    pub(crate) all: Vec<(Arc<str>, HeaderValue)>,
    /// Names of the row's headers that were left out, being ours.
    pub(crate) dropped: Vec<Box<str>>,
    /// Those of the row's headers that cannot be carried, as they were printed.
    pub(crate) bad: Vec<(Box<str>, Box<str>)>,
}

/// The names that are ours, shared by all messages.
#[derive(Debug)]
pub(crate) struct HeaderNames {
    pub(crate) aggregate_type: Arc<str>,
    pub(crate) aggregate_id: Arc<str>,
    pub(crate) event_version: Arc<str>,
    pub(crate) aggregate_seq: Arc<str>,
    pub(crate) causation_id: Arc<str>,
    pub(crate) occurred_at: Arc<str>,
    pub(crate) traceparent: Arc<str>,
    pub(crate) payload_null: Arc<str>,
}

impl HeaderNames {
    pub(crate) fn new() -> HeaderNames {
        HeaderNames {
            aggregate_type: "aggregate_type".into(),
            aggregate_id: "aggregate_id".into(),
            event_version: "event_version".into(),
            aggregate_seq: "aggregate_seq".into(),
            causation_id: "causation_id".into(),
            occurred_at: "occurred_at".into(),
            traceparent: "traceparent".into(),
            payload_null: "payload_null".into(),
        }
    }

    fn are_ours(&self, name: &str) -> bool {
        let HeaderNames {
            aggregate_type,
            aggregate_id,
            event_version,
            aggregate_seq,
            causation_id,
            occurred_at,
            traceparent,
            payload_null,
        } = self;
        let ours = [
            aggregate_type,
            aggregate_id,
            event_version,
            aggregate_seq,
            causation_id,
            occurred_at,
            traceparent,
            payload_null,
        ];
        name.starts_with("postrider_") || ours.into_iter().any(|our| **our == *name)
    }
}

impl Headers {
    pub(crate) fn add(&mut self, name: &Arc<str>, value: HeaderValue) {
        self.all.push((name.clone(), value));
    }

    pub(crate) fn text(&mut self, name: &Arc<str>, value: impl Into<Box<str>>) {
        self.add(name, HeaderValue::Text(value.into()));
    }

    /// Adds a row's own headers, a flat JSON object; of a name that comes twice the last counts.
    /// The error says what is wrong with them, and shows no value.
    pub(crate) fn add_row(&mut self, names: &HeaderNames, json: &str) -> Result<(), String> {
        self.sort(names, json, |_, _, _, why| Err(why))
    }

    /// Adds those that can be carried, and puts the others aside.
    pub(crate) fn add_row_in_part(&mut self, names: &HeaderNames, json: &str) {
        let put_aside = |headers: &mut Headers, name: Box<str>, raw: &str, _| {
            headers.bad.push((name, raw.into()));
            Ok(())
        };
        if self.sort(names, json, put_aside).is_err() {
            self.bad.push(("headers".into(), json.into()));
        }
    }

    fn sort(
        &mut self,
        names: &HeaderNames,
        json: &str,
        mut refuse: impl FnMut(&mut Headers, Box<str>, &str, String) -> Result<(), String>,
    ) -> Result<(), String> {
        // Some mappers write JSON's null where they have no object.
        let object: Option<BTreeMap<Box<str>, &RawValue>> =
            serde_json::from_str(json).map_err(|_| "the row's headers are no JSON object".to_owned())?;
        for (name, raw) in object.unwrap_or_default() {
            let raw = raw.get();
            if name.len() > u8::MAX.into() {
                let why = format!("a header's name has {} bytes, at most 255 can be carried", name.len());
                refuse(self, name, raw, why)?;
            } else if matches!(&*name, "CC" | "BCC") {
                let why = format!("the header {name} would make the broker route copies of the message");
                refuse(self, name, raw, why)?;
            } else if names.are_ours(&name) {
                self.dropped.push(name);
            } else {
                match scalar(raw) {
                    Ok(Some(value)) => self.all.push((name.into(), value)),
                    Ok(None) => {}
                    Err(what) => {
                        let why = format!("the header {name:?} {what}");
                        refuse(self, name, raw, why)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A JSON value as a header's value, `None` for null. A number's digits are kept as written.
fn scalar(raw: &str) -> Result<Option<HeaderValue>, &'static str> {
    match raw.as_bytes().first() {
        Some(b'n') => Ok(None),
        Some(b't') => Ok(Some(HeaderValue::Bool(true))),
        Some(b'f') => Ok(Some(HeaderValue::Bool(false))),
        Some(b'"') => match serde_json::from_str(raw) {
            Ok(text) => Ok(Some(HeaderValue::Text(text))),
            Err(_) => Err("is text that is no Unicode"),
        },
        Some(b'{' | b'[') => Err("is nested"),
        _ => Ok(Some(raw.parse().map_or_else(|_| HeaderValue::Text(raw.into()), HeaderValue::Long))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HeaderValue::{Bool, Long, Text};

    #[test]
    fn a_rows_headers_keep_their_types() {
        let check = |json: &str, expected: Vec<(&str, HeaderValue)>, dropped: &[&str]| {
            let mut headers = Headers::default();
            headers.add_row(&HeaderNames::new(), json).unwrap();
            let expected: Vec<_> = expected.into_iter().map(|(name, value)| (name.into(), value)).collect();
            assert_eq!(headers.all, expected, "{json}");
            assert_eq!(headers.dropped.iter().map(|name| &**name).collect::<Vec<_>>(), dropped, "{json}");
        };
        check("{}", vec![], &[]);
        check(" { } ", vec![], &[]);
        check("null", vec![], &[]);
        check(
            r#"{"a": "x", "b": null, "c": true, "d": false}"#,
            vec![("a", Text("x".into())), ("c", Bool(true)), ("d", Bool(false))],
            &[],
        );
        check(
            r#"{"max": 9223372036854775807, "min": -9223372036854775808, "zero": 0}"#,
            vec![("max", Long(i64::MAX)), ("min", Long(i64::MIN)), ("zero", Long(0))],
            &[],
        );
        check(
            r#"{"big": 9223372036854775808, "e": 1E5, "fine": 1.10, "whole": 1.0}"#,
            vec![
                ("big", Text("9223372036854775808".into())),
                ("e", Text("1E5".into())),
                ("fine", Text("1.10".into())),
                ("whole", Text("1.0".into())),
            ],
            &[],
        );
        check(
            r#"{"": "\u00e9\n\ud83d\ude00", "é": ""}"#,
            vec![("", Text("é\n😀".into())), ("é", Text("".into()))],
            &[],
        );
        check(r#"{"twice": 1, "twice": 2}"#, vec![("twice", Long(2))], &[]);
        check(
            r#"{"aggregate_id": 1, "payload_null": {}, "postrider_position": "0/0/0", "postrider_x": [], "x": 1}"#,
            vec![("x", Long(1))],
            &["aggregate_id", "payload_null", "postrider_position", "postrider_x"],
        );
        check(
            r#"{"Aggregate_id": 1, "cc": 2, "postrider": 3}"#,
            vec![("Aggregate_id", Long(1)), ("cc", Long(2)), ("postrider", Long(3))],
            &[],
        );
        check(
            r#"{"$serde_json::private::RawValue": 1}"#,
            vec![("$serde_json::private::RawValue", Long(1))],
            &[],
        );
    }

    #[test]
    fn what_cannot_be_carried_is_put_aside_as_it_was() {
        let check = |json: &str, all: &[&str], bad: &[(&str, &str)]| {
            let mut headers = Headers::default();
            headers.add_row_in_part(&HeaderNames::new(), json);
            assert_eq!(headers.all.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), all, "{json}");
            let found: Vec<_> = headers.bad.iter().map(|(name, raw)| (&**name, &**raw)).collect();
            assert_eq!(found, bad, "{json}");
        };
        check(
            r#"{"a": {"b":  1}, "c": 1, "CC": "x", "d": null, "e": "\ud800", "aggregate_id": []}"#,
            &["c"],
            &[("CC", r#""x""#), ("a", r#"{"b":  1}"#), ("e", r#""\ud800""#)],
        );
        check("[1]", &[], &[("headers", "[1]")]);
        check("null", &[], &[]);
    }

    #[test]
    fn headers_that_cannot_be_carried_are_refused() {
        let check = |json: &str, expected: &str| {
            let refused = Headers::default().add_row(&HeaderNames::new(), json);
            assert_eq!(refused, Err(expected.to_owned()), "{json}");
        };
        let no_object = "the row's headers are no JSON object";
        for json in ["", "nil", "[]", "1", "\"secret\"", "{", "{}{}", r#"{"a":}"#, r#"{"a": 01}"#] {
            check(json, no_object);
        }
        check(r#"{"a": {"secret": 1}}"#, r#"the header "a" is nested"#);
        check(r#"{"a": []}"#, r#"the header "a" is nested"#);
        check(r#"{"a": "\ud800"}"#, r#"the header "a" is text that is no Unicode"#);
        check(r#"{"CC": "x"}"#, "the header CC would make the broker route copies of the message");
        check(r#"{"BCC": null}"#, "the header BCC would make the broker route copies of the message");
        let long = format!(r#"{{"{}": 1}}"#, "é".repeat(128));
        check(&long, "a header's name has 256 bytes, at most 255 can be carried");
        let deep = format!(r#"{{"a": {}}}"#, "[".repeat(100_000));
        check(&deep, no_object);
    }
}
