//! A message's payload, for those who ask for it.

use std::fmt::Write;

use serde::Serialize;

use super::table::lines;

/// A payload as a part of a document.
#[derive(Serialize)]
pub(super) struct Payload {
    /// The body as text if it is UTF-8, else in hexadecimal digits; null if there is none.
    payload: Option<String>,
    /// `utf-8` or `hex`; null if there is none.
    payload_encoding: Option<&'static str>,
}

impl From<Option<Vec<u8>>> for Payload {
    fn from(body: Option<Vec<u8>>) -> Self {
        let (payload, payload_encoding) = match body.map(String::from_utf8) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), Some("utf-8")),
            Some(Err(binary)) => (Some(hex(binary.as_bytes())), Some("hex")),
        };
        Self { payload, payload_encoding }
    }
}

impl Payload {
    /// For people, below the properties; its lines stay lines.
    pub(super) fn lines(&self) -> String {
        let Some(payload) = &self.payload else { return String::new() };
        let hint =
            if self.payload_encoding == Some("hex") { "(not UTF-8: in hexadecimal digits)\n" } else { "" };
        hint.to_owned() + &lines(payload)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text takes text");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_text_or_hexadecimal() {
        for (body, text, encoding, lines) in [
            (None, None, None, ""),
            (Some(vec![]), Some(""), Some("utf-8"), "\n"),
            (Some("é\n\t".into()), Some("é\n\t"), Some("utf-8"), "é\n\\t\n"),
            (Some(vec![0xFF, 0x0A]), Some("ff0a"), Some("hex"), "(not UTF-8: in hexadecimal digits)\nff0a\n"),
        ] {
            let payload = Payload::from(body);
            assert_eq!((payload.payload.as_deref(), payload.payload_encoding), (text, encoding));
            assert_eq!(payload.lines(), lines);
        }
    }
}
