//! Rules between keys; what one key alone must look like is its form's matter.

use super::overlay::Values;
use super::{Config, ConfigError, Origin};

/// The first rule that is broken.
pub(super) fn check(config: &Config, values: &Values) -> Result<(), ConfigError> {
    let Config { postgres, outbox, rabbitmq, retry, .. } = config;
    for path in ["postgres.url", "rabbitmq.url", "rabbitmq.urls"] {
        let (section, _) = path.split_once('.').expect("a key's full name");
        let urls = match path {
            "postgres.url" => postgres.url.as_slice(),
            "rabbitmq.url" => rabbitmq.url.as_slice(),
            _ => &rabbitmq.urls,
        };
        let password_file =
            if section == "postgres" { &postgres.password_file } else { &rabbitmq.password_file };
        if !urls.iter().any(super::SecretUrl::has_password) {
            continue;
        }
        let origin = &values[path].1;
        ensure(*origin != Origin::Set, || {
            format!(
                "read {path} from --set: it holds a password, which every user of the machine sees; \
                 set it by variable or file, or use {section}.password_file"
            )
        })?;
        ensure(password_file.is_none(), || {
            format!(
                "choose a password: {path} ({origin}) holds one, and {section}.password_file is set as well"
            )
        })?;
    }
    ensure(rabbitmq.url.is_none() || rabbitmq.urls.is_empty(), || {
        format!(
            "choose a broker: rabbitmq.url ({}) and rabbitmq.urls ({}) are both set",
            values["rabbitmq.url"].1, values["rabbitmq.urls"].1
        )
    })?;
    ensure(!outbox.table.is_empty(), || {
        format!("read outbox.table from {}: it names no table", values["outbox.table"].1)
    })?;
    ensure(retry.first <= retry.max, || {
        format!(
            "use retry.first_ms = {} with retry.max_ms = {}: the first pause is longer than the longest",
            retry.first.as_millis(),
            retry.max.as_millis()
        )
    })
}

fn ensure(holds: bool, broken: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError(broken())) }
}
