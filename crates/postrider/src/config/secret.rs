//! Texts that must not be seen: masked by every way of printing, readable only by asking.

use std::fmt;

use serde::Deserialize;

/// What stands where a secret was.
const MASK: &str = "***";

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself: for the peer, never for a log.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// A connection text that may hold a password; printed, the password is masked.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text with its password: for the peer, never for a log.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a password stands in it.
    pub(crate) fn has_password(&self) -> bool {
        !passwords(&self.0).is_empty()
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = 0;
        for (start, end) in passwords(&self.0) {
            f.write_str(&self.0[rest..start])?;
            f.write_str(MASK)?;
            rest = end;
        }
        f.write_str(&self.0[rest..])
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The byte ranges of `text` that hold a password, in order: behind the user's colon in a URL, and
/// the value of each parameter whose name ends in `password`, in a query or in libpq's
/// `name = value` form (PostgreSQL manual, "Connection Strings").
///
/// Where the form is in doubt, rather a word too much is masked than one too little.
fn passwords(text: &str) -> Vec<(usize, usize)> {
    let at_first = |character| text.find(character).unwrap_or(text.len());
    if !text.contains("://") && at_first('=') <= at_first('@') {
        return in_words(text);
    }
    let authority = text.find("://").map_or(0, |at| at + 3);
    // A '?' starts the query only if a parameter follows it, and the last '@' before the query ends
    // the user: so a password with an unescaped '?', '@' or '/' is masked whole.
    let query = text
        .match_indices('?')
        .find(|(at, _)| matches!(text[*at..].find(['=', '@']), Some(sign) if text[at + sign..].starts_with('=')))
        .map_or(text.len(), |(at, _)| at);
    let mut found = Vec::new();
    if let Some(at) = text[..query].rfind('@').filter(|at| *at > authority)
        && let Some(colon) = text[authority..at].find(':').map(|colon| authority + colon)
    {
        found.push((colon + 1, at));
    }
    let mut start = query;
    for parameter in text[query..].split_inclusive(['?', '&']) {
        let end = start + parameter.trim_end_matches(['?', '&']).len();
        if let Some((name, _)) = text[start..end].split_once('=')
            && is_password(name)
        {
            found.push((start + name.len() + 1, end));
        }
        start += parameter.len();
    }
    found.retain(|(start, end)| start < end);
    found
}

/// The same in the form `host=a password='it\'s' user=b`.
fn in_words(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(equals) = text[at..].find('=').map(|equals| at + equals) {
        let name = text[at..equals].trim();
        let value = equals + 1 + (text[equals + 1..].len() - text[equals + 1..].trim_start().len());
        let end = value + value_length(&text[value..]);
        if is_password(name) && value < end {
            found.push((value, end));
        }
        at = end;
    }
    found
}

/// How long a libpq value is: to the closing quote, or to the next space; a backslash escapes.
fn value_length(text: &str) -> usize {
    let quoted = text.starts_with('\'');
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(usize::from(quoted)) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted => return at + 1,
            _ if !quoted && character.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

fn is_password(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("password")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_masked_wherever_it_stands() {
        for (text, masked) in [
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://app@host/db", "postgres://app@host/db"),
            ("postgres://app:@host/db", "postgres://app:@host/db"),
            ("postgres://app:hunter2@host:5432/db", "postgres://app:***@host:5432/db"),
            ("postgres://app:p@ss/w:rd@host/db", "postgres://app:***@host/db"),
            (
                "postgres://host/db?user=app&password=x%20y&a=b",
                "postgres://host/db?user=app&password=***&a=b",
            ),
            ("postgres://app:x@host/db?sslpassword=y", "postgres://app:***@host/db?sslpassword=***"),
            ("postgres://app:p?w@host/db?a=b", "postgres://app:***@host/db?a=b"),
            ("postgres://host:5432/db?application_name=a@b", "postgres://host:5432/db?application_name=a@b"),
            ("app:hunter2@host", "app:***@host"),
            ("amqp://guest:guest@127.0.0.1:5672/%2f", "amqp://guest:***@127.0.0.1:5672/%2f"),
            ("amqps://[::1]:5671/v", "amqps://[::1]:5671/v"),
            ("host=a password=secret user=b", "host=a password=*** user=b"),
            ("host=a password = 'it\\'s x' user=b", "host=a password = *** user=b"),
            ("password='unclosed", "password=***"),
            ("PASSWORD=x", "PASSWORD=***"),
            ("host=a user=b", "host=a user=b"),
            ("password=", "password="),
            ("", ""),
        ] {
            let url = SecretUrl(text.to_owned());
            assert_eq!(url.to_string(), masked);
            assert_eq!(format!("{url:?}"), masked);
            assert_eq!(url.has_password(), text != masked, "{text}");
            assert_eq!(url.expose(), text);
        }
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "***");
    }
}
