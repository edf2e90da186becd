//! What a key of the configuration is, and how its value is read from text or from the file.

use toml::Value;
use toml::de::DeValue;

/// One key of the configuration.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// One value, or several (an array in the file, comma-separated elsewhere).
    pub(crate) list: bool,
    pub(crate) default: Default,
    /// One sentence for the README and the example file.
    pub(crate) meaning: &'static str,
}

/// What a key is when nobody sets it.
#[derive(Debug)]
pub(crate) enum Default {
    /// This, as it would be written in a variable.
    Is(&'static str),
    /// Nothing; the text shows what it could be.
    Unset(&'static str),
}

/// What a value must look like.
#[derive(Debug)]
pub(crate) enum Form {
    /// Text that passes `check`, whose error says what is wrong with it.
    Text { expected: &'static str, check: fn(&str) -> Result<(), String> },
    /// The same, but it may hold a password: never shown.
    Url { expected: &'static str, check: fn(&str) -> Result<(), String> },
    /// A whole number in these bounds.
    Whole { min: i64, max: i64 },
    /// A number in these bounds.
    Fraction { min: f64, max: f64 },
    /// true or false.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

impl Key {
    /// The key's full name, as `section.name`.
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Whether a value may hold a password.
    pub(crate) fn secret(&self) -> bool {
        matches!(self.form, Form::Url { .. })
    }

    /// Reads a variable's or a flag's text; the error says what is wrong and never holds a secret.
    pub(crate) fn read_text(&self, text: &str) -> Result<Value, String> {
        if !self.list {
            return self.form.read_text(text).map_err(|wrong| self.explain(&wrong, &format!("{text:?}")));
        }
        let items = split_list(text).into_iter().map(|item| self.form.read_text(item));
        items
            .collect::<Result<_, _>>()
            .map(Value::Array)
            .map_err(|wrong| self.explain(&wrong, &format!("{text:?}")))
    }

    /// Reads a value of the file in the same way; a list may be a single value there.
    pub(crate) fn read_toml(&self, value: &DeValue<'_>) -> Result<Value, String> {
        let shown = match value {
            DeValue::String(text) => format!("{text:?}"),
            _ => format!("one of type {}", value.type_str()),
        };
        match value {
            DeValue::Array(items) if self.list => {
                let items = items.iter().map(|item| self.form.read_toml(item.get_ref()));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            _ if self.list => self.form.read_toml(value).map(|value| Value::Array(vec![value])),
            _ => self.form.read_toml(value),
        }
        .map_err(|wrong| self.explain(&wrong, &shown))
    }

    fn explain(&self, wrong: &str, shown: &str) -> String {
        let expected = self.form.expected();
        let got = if self.secret() { String::new() } else { format!(", got {shown}") };
        let reason = if wrong.is_empty() { String::new() } else { format!("{wrong}; ") };
        format!("{reason}expected {expected}{got}")
    }
}

impl Form {
    /// What a value must look like, in words.
    pub(crate) fn expected(&self) -> String {
        match self {
            Form::Text { expected, .. } | Form::Url { expected, .. } => (*expected).to_owned(),
            Form::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Form::Fraction { min, max } => format!("a number from {min:?} to {max:?}"),
            Form::Switch => "true or false".to_owned(),
            Form::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// An empty error: nothing to add to [`Form::expected`].
    fn read_text(&self, text: &str) -> Result<Value, String> {
        match self {
            Form::Text { check, .. } | Form::Url { check, .. } => {
                check(text).map(|()| Value::String(text.to_owned()))
            }
            Form::Whole { min, max } => match text.trim().parse() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(Value::Integer(number)),
                _ => Err(String::new()),
            },
            Form::Fraction { min, max } => match text.trim().parse() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(Value::Float(number)),
                _ => Err(String::new()),
            },
            Form::Switch => text.trim().parse().map(Value::Boolean).map_err(|_| String::new()),
            Form::OneOf(words) if words.contains(&text) => Ok(Value::String(text.to_owned())),
            Form::OneOf(_) => Err(String::new()),
        }
    }

    fn read_toml(&self, value: &DeValue<'_>) -> Result<Value, String> {
        match (self, value) {
            (Form::Text { .. } | Form::Url { .. } | Form::OneOf(_), DeValue::String(text)) => {
                self.read_text(text)
            }
            (Form::Whole { .. } | Form::Fraction { .. }, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                self.read_text(number.as_str())
            }
            (Form::Fraction { .. }, DeValue::Float(number)) => self.read_text(number.as_str()),
            (Form::Switch, DeValue::Boolean(yes)) => Ok(Value::Boolean(*yes)),
            _ => Err(String::new()),
        }
    }
}

/// Splits at commas outside double quotes (which quote a table's name); no text is an empty list.
pub(super) fn split_list(text: &str) -> Vec<&str> {
    let mut quoted = false;
    let items = text.split(|character| {
        quoted ^= character == '"';
        character == ',' && !quoted
    });
    let items: Vec<&str> = items.map(str::trim).collect();
    if items == [""] { Vec::new() } else { items }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::KEYS;

    fn key(path: &str) -> &'static Key {
        KEYS.iter().find(|key| key.path() == path).expect("a key of this name")
    }

    #[test]
    fn a_value_is_read_or_the_error_says_what_is_expected() {
        for (path, text, read) in [
            ("rabbitmq.lanes", "8", Ok("8")),
            ("rabbitmq.lanes", " 8 ", Ok("8")),
            ("rabbitmq.lanes", "0", Err("expected a whole number from 1 to 256, got \"0\"")),
            ("rabbitmq.lanes", "", Err("expected a whole number from 1 to 256, got \"\"")),
            ("retry.jitter", "1", Ok("1.0")),
            ("retry.jitter", "1.1", Err("expected a number from 0.0 to 1.0, got \"1.1\"")),
            ("retry.jitter", "NaN", Err("expected a number from 0.0 to 1.0, got \"NaN\"")),
            ("rabbitmq.declare", "false", Ok("false")),
            ("rabbitmq.declare", "no", Err("expected true or false, got \"no\"")),
            ("log.format", "xml", Err("expected one of text, json, got \"xml\"")),
            ("postgres.slot", "Slot", Err("expected 1 to 63 of a-z, 0-9 and _, got \"Slot\"")),
            ("http.listen", "", Ok("\"\"")),
            ("http.listen", "localhost:0", Ok("\"localhost:0\"")),
            ("http.listen", "[::1]:9465", Ok("\"[::1]:9465\"")),
            ("http.listen", "9465", Err("expected address:port, or empty for off, got \"9465\"")),
            ("http.listen", "::1", Err("expected address:port, or empty for off, got \"::1\"")),
            ("outbox.table", "a.b, \"c,d\".e", Ok("[\"a.b\", '\"c,d\".e']")),
            ("rabbitmq.urls", "", Ok("[]")),
            (
                "rabbitmq.urls",
                "amqp://a,http://b:hunter2@c",
                Err("its scheme is \"http\", expected amqp or amqps; expected amqp:// or amqps:// URLs"),
            ),
        ] {
            let value = key(path).read_text(text).map(|value| value.to_string());
            assert_eq!(value, read.map(str::to_owned).map_err(str::to_owned), "{path}={text}");
        }
    }

    #[test]
    fn a_value_of_the_file_has_the_type_of_its_key() {
        for (path, toml, read) in [
            ("rabbitmq.lanes", "1_6", Ok("16")),
            ("rabbitmq.lanes", "'8'", Err("expected a whole number from 1 to 256, got \"8\"")),
            ("rabbitmq.lanes", "8.0", Err("expected a whole number from 1 to 256, got one of type float")),
            ("retry.jitter", "0", Ok("0.0")),
            ("rabbitmq.declare", "true", Ok("true")),
            ("rabbitmq.exchange", "true", Err("expected at most 255 bytes, got one of type boolean")),
            ("outbox.table", "'a.b'", Ok("[\"a.b\"]")),
            ("outbox.table", "['a.b', 'c.d']", Ok("[\"a.b\", \"c.d\"]")),
            (
                "outbox.table",
                "[1]",
                Err("expected schema.table, quoted as SQL wants it, got one of type array"),
            ),
        ] {
            let parsed = DeValue::parse(toml).expect("TOML");
            let value = key(path).read_toml(parsed.get_ref()).map(|value| value.to_string());
            assert_eq!(value, read.map(str::to_owned).map_err(str::to_owned), "{path} = {toml}");
        }
    }
}
