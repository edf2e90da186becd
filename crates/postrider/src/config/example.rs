//! The configuration as text: the example file, the effective values, the README's table.

use std::fmt::Write;

use super::key::{Default, Key, split_list};
use super::keys::KEYS;
use super::overlay::{self, Loaded, Origin};

/// The default file with a comment for each key; it reads back to the defaults.
pub(crate) fn example() -> String {
    let defaults = overlay::defaults();
    let mut text = String::from(
        "# Postrider's configuration, with the defaults. Each key is also a variable, such as\n\
         # POSTRIDER_POSTGRES_URL, and a flag, such as --set rabbitmq.lanes=4; flags win over variables,\n\
         # variables over the file.\n",
    );
    for (at, key) in KEYS.iter().enumerate() {
        open_section(at, key, &mut text);
        let line = match key.default {
            Default::Is(_) => format!("{} = {}", key.name, defaults[&key.path()].0),
            Default::Unset(shown) if key.list => format!("# {} = {:?}", key.name, split_list(shown)),
            Default::Unset(shown) => format!("# {} = {shown:?}", key.name),
        };
        write!(text, "\n# {}\n{line}\n", key.meaning).expect("text takes text");
    }
    text
}

/// The values that hold, secrets masked, each with who set it unless it is the default.
pub(crate) fn effective(loaded: &Loaded) -> String {
    let mut text = String::new();
    for (at, key) in KEYS.iter().enumerate() {
        open_section(at, key, &mut text);
        let line = match loaded.values.get(&key.path()) {
            Some((value, origin)) => {
                let origin = if *origin == Origin::Default { String::new() } else { format!("  # {origin}") };
                format!("{} = {value}{origin}", key.name)
            }
            None => format!("# {} is not set", key.name),
        };
        writeln!(text, "{line}").expect("text takes text");
    }
    text
}

fn open_section(at: usize, key: &Key, text: &mut String) {
    if at == 0 || KEYS[at - 1].section != key.section {
        let gap = if text.is_empty() { "" } else { "\n" };
        writeln!(text, "{gap}[{}]", key.section).expect("text takes text");
    }
}

/// The rows of the README's table.
#[cfg(test)]
pub(crate) fn readme_rows() -> String {
    KEYS.iter().fold(String::new(), |mut rows, key| {
        let default = match key.default {
            Default::Is("") | Default::Unset(_) => String::new(),
            Default::Is(text) => format!("`{text}`"),
        };
        writeln!(rows, "| `{}` | {default} | {} |", key.path(), key.meaning).expect("text takes text");
        rows
    })
}
