//! Where values come from: the file, then the environment, then `--set`; the last one counts.
//!
//! A name that is not known is an error wherever it stands, because a misspelt key that is passed
//! over is a setting that silently does not hold. The one exception is an unknown *section* in the
//! environment, where others write as well (Kubernetes sets `POSTRIDER_PORT`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::key::{Default, Key};
use super::keys::KEYS;
use super::{Config, ConfigError, Secret, SecretUrl, check};

/// Every variable of ours starts with this.
const PREFIX: &str = "POSTRIDER_";

/// Everything a configuration can be read from.
#[derive(Default)]
pub(crate) struct Sources {
    /// `--config`; without it, the variable `POSTRIDER_CONFIG`.
    pub(crate) file: Option<PathBuf>,
    /// The environment.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Each `--set`, as `section.key=value`.
    pub(crate) set: Vec<String>,
}

/// A configuration, where each value of it came from, and what is to be said about it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The values as they were laid over each other, by key; passwords masked.
    pub(crate) values: Values,
    /// For the log, once there is one.
    pub(crate) warnings: Vec<String>,
}

/// What each key that somebody set or that has a default is, and who says so.
pub(crate) type Values = BTreeMap<String, (Value, Origin)>;

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody.
    Default,
    /// A line of the file, counted from 1.
    File { path: PathBuf, line: usize },
    /// A variable.
    Variable(String),
    /// A flag.
    Set,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{} line {line}", path.display()),
            Origin::Variable(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
        }
    }
}

impl Sources {
    /// Reads, lays over each other and checks.
    pub(crate) fn load(self) -> Result<Loaded, ConfigError> {
        let mut values = defaults();
        let mut warnings = Vec::new();
        let variables = ours(self.variables)?;
        let named =
            variables.get(&format!("{PREFIX}CONFIG")).filter(|name| !name.is_empty()).map(PathBuf::from);
        if let Some(path) = self.file.or(named) {
            let text = std::fs::read_to_string(&path).map_err(|error| {
                ConfigError(format!("read the configuration file {}: {error}", path.display()))
            })?;
            read_file(&path, &text, &mut values)?;
        }
        read_variables(&variables, &mut values, &mut warnings)?;
        for setting in &self.set {
            read_set(setting, &mut values)?;
        }
        let mut config = typed(&values);
        config.postgres.password = read_password(config.postgres.password_file.as_deref(), "postgres")?;
        config.rabbitmq.password = read_password(config.rabbitmq.password_file.as_deref(), "rabbitmq")?;
        check::check(&config, &values)?;
        mask(&mut values);
        Ok(Loaded { config, values, warnings })
    }
}

/// What holds when nobody sets anything.
pub(super) fn defaults() -> Values {
    let with_default = KEYS.iter().filter_map(|key| match key.default {
        Default::Is(text) => {
            let value = key.read_text(text).expect("a default is a good value");
            Some((key.path(), (value, Origin::Default)))
        }
        Default::Unset(_) => None,
    });
    with_default.collect()
}

/// The values by their types; the list of keys and the structs agree, or the first test fails.
fn typed(values: &Values) -> Config {
    let mut tables = Table::new();
    for key in KEYS {
        let Value::Table(section) = tables.entry(key.section).or_insert_with(|| Value::Table(Table::new()))
        else {
            unreachable!("a section is a table");
        };
        if let Some((value, _)) = values.get(&key.path()) {
            section.insert(key.name.to_owned(), value.clone());
        }
    }
    Config::deserialize(tables).expect("every value has the form of its key")
}

/// From here on the values are only shown.
fn mask(values: &mut Values) {
    for key in KEYS.iter().filter(|key| key.secret()) {
        match values.get_mut(&key.path()) {
            Some((Value::String(text), _)) => *text = SecretUrl::new(&**text).to_string(),
            Some((Value::Array(items), _)) => {
                for item in items {
                    let text = item.as_str().expect("a URL is text");
                    *item = Value::String(SecretUrl::new(text).to_string());
                }
            }
            _ => {}
        }
    }
}

/// The variables that start with our prefix.
fn ours(variables: Vec<(OsString, OsString)>) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut ours = BTreeMap::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let value = value.into_string().map_err(|_| ConfigError(format!("read {name}: it is not UTF-8")))?;
        ours.insert(name.to_owned(), value);
    }
    Ok(ours)
}

fn read_variables(
    variables: &BTreeMap<String, String>,
    values: &mut Values,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    for (variable, text) in variables {
        let name = variable[PREFIX.len()..].to_ascii_lowercase();
        if name == "config" {
            continue;
        }
        // The first '_' ends the section; the key has more of them.
        match name.split_once('_').filter(|(section, _)| is_section(section)) {
            Some((section, name)) => {
                let key = find(section, name).map_err(|error| error.within(variable))?;
                insert(key, key.read_text(text), Origin::Variable(variable.clone()), values)?;
            }
            None => warnings.push(format!("the variable {variable} names no section and is passed over")),
        }
    }
    Ok(())
}

fn read_set(setting: &str, values: &mut Values) -> Result<(), ConfigError> {
    let parts = setting.split_once('=').and_then(|(path, text)| Some((path.trim().split_once('.')?, text)));
    let Some(((section, name), text)) = parts else {
        // Not repeated: what stands there may be a secret.
        return Err(ConfigError("read --set: expected section.key=value".to_owned()));
    };
    if is_section(section) && name == "password" {
        return Err(ConfigError(format!(
            "read {section}.password from --set: a password never comes from a flag, where every user of \
             the machine sees it; use {section}.password_file"
        )));
    }
    let key = find(section, name).map_err(|error| error.within("--set"))?;
    insert(key, key.read_text(text), Origin::Set, values)
}

fn read_file(path: &Path, text: &str, values: &mut Values) -> Result<(), ConfigError> {
    let line = |offset: usize| text[..offset].matches('\n').count() + 1;
    let origin = |offset: usize| Origin::File { path: path.to_owned(), line: line(offset) };
    // Only the message: the parser's full report quotes the line, which may hold a password.
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line(span.start));
        ConfigError(format!(
            "read the configuration file {} line {line}: {}",
            path.display(),
            error.message()
        ))
    })?;
    for (section, table) in document.get_ref() {
        let at = origin(section.span().start).to_string();
        if !is_section(section.get_ref()) {
            return Err(unknown_section(section.get_ref()).within(&at));
        }
        let DeValue::Table(table) = table.get_ref() else {
            return Err(ConfigError(format!(
                "read {} from {at}: expected a table of keys",
                section.get_ref()
            )));
        };
        for (name, value) in table {
            let at = origin(name.span().start);
            let key =
                find(section.get_ref(), name.get_ref()).map_err(|error| error.within(&at.to_string()))?;
            insert(key, key.read_toml(value.get_ref()), at, values)?;
        }
    }
    Ok(())
}

fn insert(
    key: &Key,
    read: Result<Value, String>,
    origin: Origin,
    values: &mut Values,
) -> Result<(), ConfigError> {
    let value = read.map_err(|wrong| ConfigError(format!("read {} from {origin}: {wrong}", key.path())))?;
    values.insert(key.path(), (value, origin));
    Ok(())
}

/// The trailing newline that every editor writes is not part of a password.
fn read_password(file: Option<&Path>, section: &str) -> Result<Option<Secret>, ConfigError> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| ConfigError(format!("read {section}.password_file {}: {error}", file.display())))?;
    let password = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    Ok(Some(Secret::new(password)))
}

/// A name nobody knows; where it stands is added by the reader.
struct Unknown(String);

impl Unknown {
    fn within(self, place: &str) -> ConfigError {
        ConfigError(format!("read {place}: {}", self.0))
    }
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.section == name)
}

fn find(section: &str, name: &str) -> Result<&'static Key, Unknown> {
    if !is_section(section) {
        return Err(unknown_section(section));
    }
    let found = KEYS.iter().find(|key| key.section == section && key.name == name);
    found.ok_or_else(|| {
        // A key of another section is near only if its name is.
        let nearness = |key: &&Key| {
            let near = strsim::jaro_winkler(key.name, name);
            if key.section == section { near } else { near * 0.9 }
        };
        let nearest = KEYS.iter().max_by(|a, b| nearness(a).total_cmp(&nearness(b))).expect("there are keys");
        Unknown(format!("there is no key {section}.{name}; did you mean {}?", nearest.path()))
    })
}

fn unknown_section(name: &str) -> Unknown {
    let nearness = |key: &&Key| strsim::jaro_winkler(key.section, name);
    let nearest = KEYS.iter().max_by(|a, b| nearness(a).total_cmp(&nearness(b))).expect("there are keys");
    Unknown(format!("there is no section {name}; did you mean {}?", nearest.section))
}
