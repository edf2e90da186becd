//! The header table as a JSON object, in its order, and back.
//!
//! Invariant: what [`write()`] makes, [`read()`] reads as it was; or refuses, if there is a header that cannot be
//! carried. JSON has one kind of integer: only `event_version` is of 32 bits.

use std::collections::HashMap;
use std::sync::Arc;

use postrider_relay::HeaderValue;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

type Table = Vec<(Arc<str>, HeaderValue)>;

/// The only header that is a 32-bit integer.
const INT: &str = "event_version";

/// Of a name that comes twice the last counts. One that cannot be carried is a list with what was printed, as
/// text: whatever that is, it is nested no deeper, so that the server takes it and [`read()`] does not.
pub(super) fn write(headers: &[(Arc<str>, HeaderValue)], bad: &[(Box<str>, Box<str>)]) -> String {
    serde_json::to_string(&Flat { headers, bad }).expect("texts, booleans, integers and lists are JSON")
}

/// An error says what an edit has made that is no header, and shows no value.
pub(super) fn read(json: &str) -> Result<Table, String> {
    let Pairs(pairs) = serde_json::from_str(json).map_err(|_| "headers is no JSON object".to_owned())?;
    let mut table = Table::with_capacity(pairs.len());
    let mut places = HashMap::with_capacity(pairs.len());
    for (name, raw) in pairs {
        let value = value(&name, raw.get()).map_err(|what| format!("the header {name:?} {what}"))?;
        if let Some(&place) = places.get(&name) {
            let pair: &mut (Arc<str>, HeaderValue) = &mut table[place];
            pair.1 = value;
        } else {
            table.push((Arc::from(&*name), value));
            places.insert(name, table.len() - 1);
        }
    }
    Ok(table)
}

fn value(name: &str, raw: &str) -> Result<HeaderValue, &'static str> {
    // What no row of the outbox may bring, an edit may not either: the one blinds the matching of returns.
    if name.starts_with("postrider_") {
        return Err("has a name that is Postrider's own");
    }
    if matches!(name, "CC" | "BCC") {
        return Err("would make the broker route copies of the message");
    }
    match raw.as_bytes().first() {
        Some(b't') => Ok(HeaderValue::Bool(true)),
        Some(b'f') => Ok(HeaderValue::Bool(false)),
        Some(b'"') => {
            serde_json::from_str(raw).map(HeaderValue::Text).map_err(|_| "is text that is no Unicode")
        }
        Some(b'n') => Err("is null"),
        Some(b'{' | b'[') => Err("is nested"),
        _ if name == INT => raw.parse().map(HeaderValue::Int).map_err(|_| "is no integer of 32 bits"),
        _ => raw.parse().map(HeaderValue::Long).map_err(|_| "is no integer of 64 bits"),
    }
}

struct Flat<'a> {
    headers: &'a [(Arc<str>, HeaderValue)],
    bad: &'a [(Box<str>, Box<str>)],
}

#[derive(Serialize)]
#[serde(untagged)]
enum Scalar<'a> {
    Text(&'a str),
    Bool(bool),
    Integer(i64),
    Bad([&'a str; 1]),
}

impl Serialize for Flat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bad = self.bad.iter().map(|(name, printed)| (&**name, Scalar::Bad([printed])));
        let headers = self.headers.iter().map(|(name, value)| {
            let scalar = match value {
                HeaderValue::Text(text) => Scalar::Text(text),
                HeaderValue::Bool(value) => Scalar::Bool(*value),
                HeaderValue::Int(value) => Scalar::Integer((*value).into()),
                HeaderValue::Long(value) => Scalar::Integer(*value),
            };
            (&**name, scalar)
        });
        serializer.collect_map(headers.chain(bad))
    }
}

/// A JSON object in its order.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            any::<String>().prop_map(|text| HeaderValue::Text(text.into())),
            any::<bool>().prop_map(HeaderValue::Bool),
            any::<i64>().prop_map(HeaderValue::Long),
        ]
    }

    proptest! {
        #[test]
        fn a_table_reads_back_in_its_order(
            others in proptest::collection::hash_map(any::<String>(), value(), 0..20),
            version in proptest::option::of(any::<i32>()),
        ) {
            let version = version.map(|version| (Arc::from(INT), HeaderValue::Int(version)));
            let others = others.into_iter().filter(|(name, _)| name != INT);
            let table: Table =
                version.into_iter().chain(others.map(|(name, value)| (Arc::from(name), value))).collect();
            prop_assert_eq!(read(&write(&table, &[])), Ok(table));
        }

        #[test]
        fn no_edit_panics(json: String) {
            let _ = read(&json);
        }
    }

    #[test]
    fn what_could_not_be_carried_stays_so() {
        let table = [(Arc::from("good"), HeaderValue::Long(1))];
        let written = write(&table, &[("a".into(), "{\"b\":  1}".into())]);
        assert_eq!(written, r#"{"good":1,"a":["{\"b\":  1}"]}"#);
        assert_eq!(read(&written), Err(r#"the header "a" is nested"#.to_owned()));
        for name in ["CC", "n", "headers"] {
            let written = write(&table, &[(name.into(), "\"x\"".into())]);
            assert!(read(&written).is_err(), "{written}");
        }
    }

    #[test]
    fn what_is_no_header_is_named_without_its_value() {
        let check = |json: &str, expected: &str| assert_eq!(read(json), Err(expected.to_owned()), "{json}");
        for json in ["", "null", "[]", "1", "{", "{}{}", r#"{"a": 01}"#] {
            check(json, "headers is no JSON object");
        }
        check(&format!(r#"{{"a": {}}}"#, "[".repeat(100_000)), "headers is no JSON object");
        check(
            r#"{"postrider_position": 1}"#,
            r#"the header "postrider_position" has a name that is Postrider's own"#,
        );
        check(r#"{"CC": "x"}"#, r#"the header "CC" would make the broker route copies of the message"#);
        check(r#"{"a": null}"#, r#"the header "a" is null"#);
        check(r#"{"a": {"b": 1}}"#, r#"the header "a" is nested"#);
        check(r#"{"a": "\ud800"}"#, r#"the header "a" is text that is no Unicode"#);
        check(r#"{"a": 9223372036854775808}"#, r#"the header "a" is no integer of 64 bits"#);
        check(r#"{"event_version": 2147483648}"#, r#"the header "event_version" is no integer of 32 bits"#);
    }
}
