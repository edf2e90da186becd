//! A table's name as it is written in SQL, read as Postgres reads it.

use postrider_relay::TableName;

/// Reads `schema.table`: lower case unless in double quotes, a doubled quote inside them is one
/// (PostgreSQL manual, "Identifiers and Key Words").
pub(super) fn read(text: &str) -> Result<TableName, String> {
    let (schema, rest) = identifier(text)?;
    let rest = rest.strip_prefix('.').ok_or_else(|| "the schema is missing".to_owned())?;
    let (name, rest) = identifier(rest)?;
    if rest.is_empty() {
        Ok(TableName::new(&schema, &name))
    } else {
        Err(format!("{rest:?} follows the name"))
    }
}

/// The identifier at the start of `text`, and what follows it.
fn identifier(text: &str) -> Result<(String, &str), String> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted).ok_or_else(|| "a double quote is not closed".to_owned())?,
        None => {
            let plain = |character: char| character.is_alphanumeric() || matches!(character, '_' | '$');
            let end = text.find(|character| !plain(character)).unwrap_or(text.len());
            (text[..end].to_ascii_lowercase(), &text[end..])
        }
    };
    match name.len() {
        0 => Err("a name is missing".to_owned()),
        // NAMEDATALEN; Postgres would cut it and then find another table.
        64.. => Err(format!("a name has {} bytes, at most 63 are kept", name.len())),
        _ => Ok((name, rest)),
    }
}

/// The text up to the closing quote, and what follows that.
fn unquote(mut rest: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_postgres_reads_it() {
        for (text, read) in [
            ("postrider.outbox", Ok(("postrider", "outbox"))),
            ("Shop.OutBox_2$", Ok(("shop", "outbox_2$"))),
            ("\"Shop\".\"My \"\"Outbox\"\".x\"", Ok(("Shop", "My \"Outbox\".x"))),
            ("müller.größe", Ok(("müller", "größe"))),
            ("outbox", Err("the schema is missing")),
            ("", Err("a name is missing")),
            ("a.", Err("a name is missing")),
            ("a.\"\"", Err("a name is missing")),
            ("a.\"b", Err("a double quote is not closed")),
            ("a.b.c", Err("\".c\" follows the name")),
            ("a.b; drop", Err("\"; drop\" follows the name")),
        ] {
            let found = super::read(text);
            let expected = read.map(|(schema, name)| TableName::new(schema, name)).map_err(str::to_owned);
            assert_eq!(found, expected, "{text}");
        }
        assert!(super::read(&format!("a.{}", "b".repeat(64))).is_err());
    }
}
