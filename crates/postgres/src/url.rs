//! A connection string, read as libpq reads it: a URL or `key=value` words become one list of
//! settings (PostgreSQL manual, "Connection Strings").
//!
//! An error names the parameter, never its value: the value may be the secret.

/// The connection string is wrong: wrong configuration, nothing to retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The text is neither a URL nor `key=value` words.
    #[error("read the connection string: {0}")]
    Syntax(&'static str),
    /// No such parameter, or one that is not supported.
    #[error("read the connection string: unknown parameter {0:?}")]
    Unknown(String),
    /// The parameter's value is not one of its words, or not supported.
    #[error("read the connection string: parameter {name:?}: {problem}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// A certificate or key that is named cannot be used.
    #[error("read {name} {path:?}: {problem}")]
    Certificate {
        /// The parameter that names the file.
        name: &'static str,
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The settings in the order in which they stand; `host`, `hostaddr` and `port` may be lists.
pub(crate) fn settings(text: &str) -> Result<Vec<(String, String)>, UrlError> {
    let text = text.trim();
    match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
        Some(rest) => url(rest),
        None if text.contains("://") => {
            Err(UrlError::Syntax("expected a URL that begins with postgres:// or postgresql://"))
        }
        None => words(text),
    }
}

/// `[user[:password]@][host[:port],…][/database][?name=value&…]`
fn url(rest: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut settings = Vec::new();
    let mut set = |name: &str, value: &str| -> Result<(), UrlError> {
        settings.push((name.to_owned(), percent_decoded(value)?));
        Ok(())
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    if let Some(login) = login {
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        if !user.is_empty() {
            set("user", user)?;
        }
        if let Some(password) = password {
            set("password", password)?;
        }
    }
    if !hosts.is_empty() {
        let pairs = hosts.split(',').map(host_and_port).collect::<Result<Vec<_>, _>>()?;
        set("host", &pairs.iter().map(|(host, _)| *host).collect::<Vec<_>>().join(","))?;
        if pairs.iter().any(|(_, port)| !port.is_empty()) {
            set("port", &pairs.iter().map(|(_, port)| *port).collect::<Vec<_>>().join(","))?;
        }
    }
    if !database.is_empty() {
        set("dbname", database)?;
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) =
            pair.split_once('=').ok_or(UrlError::Syntax("a query parameter has no = sign"))?;
        set(&percent_decoded(name)?, value)?;
    }
    Ok(settings)
}

fn host_and_port(entry: &str) -> Result<(&str, &str), UrlError> {
    if let Some(bracketed) = entry.strip_prefix('[') {
        let (host, rest) =
            bracketed.split_once(']').ok_or(UrlError::Syntax("a [ in the host list is not closed"))?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, port)),
            None if rest.is_empty() => Ok((host, "")),
            None => Err(UrlError::Syntax("expected : or , behind ] in the host list")),
        };
    }
    Ok(entry.split_once(':').unwrap_or((entry, "")))
}

fn percent_decoded(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (code, tail) =
            rest.split_at_checked(2).ok_or(UrlError::Syntax("a % is not followed by two digits"))?;
        let digits =
            std::str::from_utf8(code).ok().filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            None => {
                return Err(UrlError::Syntax("a % is not followed by two hexadecimal digits (write %25)"));
            }
            Some(0) => return Err(UrlError::Syntax("%00 is not allowed")),
            Some(byte) => bytes.push(byte),
        }
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Syntax("the text behind % signs is not UTF-8"))
}

/// `name = value`, separated by white space; a value with spaces stands in single quotes, and a
/// backslash takes the next character as it is.
fn words(text: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut settings = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, tail) = rest.split_once('=').ok_or(UrlError::Syntax("expected name=value words"))?;
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(UrlError::Syntax("expected name=value words"));
        }
        let (value, tail) = value(tail.trim_start())?;
        settings.push((name.to_owned(), value));
        rest = tail.trim_start();
    }
    Ok(settings)
}

fn value(text: &str) -> Result<(String, &str), UrlError> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted { Err(UrlError::Syntax("a quoted value is not closed")) } else { Ok((value, "")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match settings(text) {
            Ok(list) => {
                list.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn both_forms_are_read_as_libpq_reads_them() {
        for (text, expected) in [
            ("postgres://u:p@h:5433/d", "user=u password=p host=h port=5433 dbname=d"),
            ("postgresql://h", "host=h"),
            ("postgres:///d?host=/run/pg&user=u", "dbname=d host=/run/pg user=u"),
            ("postgres://%2Frun%2Fpg:5433/d", "host=/run/pg port=5433 dbname=d"),
            ("postgres://a,b:2,[::1]:3/d", "host=a,b,::1 port=,2,3 dbname=d"),
            ("postgres://u%40x:p%3A%2F%25@h/d%20e", "user=u@x password=p:/% host=h dbname=d e"),
            ("postgres://u:p@q@h/d", "user=u password=p@q host=h dbname=d"),
            (
                "postgres://h/d?sslmode=verify-full&options=-c%20a=b",
                "host=h dbname=d sslmode=verify-full options=-c a=b",
            ),
            ("host=h port = 5 password='a b\\'c' user=x\\ y", "host=h port=5 password=a b'c user=x y"),
            ("host=h password=''", "host=h password="),
            ("", ""),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_connection_string_is_refused_without_its_text() {
        for text in [
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2%@h/d",
            "postgres://u:hunter2%zz@h/d",
            "postgres://u:hunter2%ff@h/d",
            "postgres://u:hunter2@[::1/d",
            "postgres://u:hunter2@h/d?sslmode",
            "hunter2",
            "password='hunter2",
        ] {
            let error = settings(text).expect_err(text).to_string();
            assert!(error.starts_with("read the connection string: "), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
