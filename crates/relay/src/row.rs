//! One row of an outbox table, its columns by name.
//!
//! What a column cannot give is said with the column's name and never with its value.

use std::str::FromStr;

use crate::columns::Columns;
use crate::decode::Value;
use crate::reason::Reason;
use crate::relation::Layout;

/// The cells of a row.
pub(crate) type Row<'a> = Columns<Cell<'a>>;

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    /// The column's name in the table.
    name: &'a str,
    /// `None` where the table has no such column.
    value: Option<Value<'a>>,
}

/// Why a row is refused, and the detail for a log.
pub(crate) type Refusal = (Reason, String);

impl Layout {
    /// The row whose values are these.
    pub(crate) fn row<'a>(&'a self, values: &[Value<'a>]) -> Row<'a> {
        self.places.map(|place| Cell {
            name: &place.name,
            value: place.index.and_then(|index| values.get(index).copied()),
        })
    }
}

impl Row<'_> {
    /// The columns that the table has as a JSON object of strings and nulls, without the payload. What is no
    /// UTF-8 is shown with replacement characters.
    pub(crate) fn to_json(self) -> String {
        let mut object = serde_json::Map::new();
        let mut add = |cell: &Cell<'_>| {
            let value = match cell.value {
                None | Some(Value::Unchanged | Value::Binary(_)) => return,
                Some(Value::Null) => serde_json::Value::Null,
                Some(Value::Text(bytes)) => String::from_utf8_lossy(bytes).into(),
            };
            object.insert(cell.name.to_owned(), value);
        };
        let payload = Cell { name: "", value: None };
        Row { payload, ..self }.map(&mut add);
        serde_json::Value::from(object).to_string()
    }
}

impl<'a> Cell<'a> {
    /// The same column with NULL in it.
    pub(crate) fn emptied(self) -> Cell<'a> {
        Cell { value: self.value.map(|_| Value::Null), ..self }
    }

    /// The bytes as Postgres prints them, `None` for NULL. The column must be there.
    pub(crate) fn bytes(self) -> Result<Option<&'a [u8]>, Refusal> {
        match self.value {
            None => Err((Reason::MissingColumn, format!("the table has no column {}", self.name))),
            Some(Value::Null) => Ok(None),
            Some(Value::Text(bytes)) => Ok(Some(bytes)),
            Some(Value::Unchanged | Value::Binary(_)) => Err(self.bad("was not sent as text")),
        }
    }

    /// The text, `None` for NULL or without such a column.
    pub(crate) fn text(self) -> Result<Option<&'a str>, Refusal> {
        if self.value.is_none() {
            return Ok(None);
        }
        let bytes = self.bytes()?;
        bytes.map(std::str::from_utf8).transpose().map_err(|_| self.bad("holds text that is no UTF-8"))
    }

    /// The text of a column that must have one.
    pub(crate) fn required(self) -> Result<&'a str, Refusal> {
        self.bytes()?;
        self.text()?.ok_or_else(|| self.null())
    }

    /// What [`Cell::text`] gives, read by `T`; `what` is what it should have been.
    pub(crate) fn parse<T: FromStr>(self, what: &str) -> Result<Option<T>, Refusal> {
        let text = self.text()?;
        text.map(str::parse).transpose().map_err(|_| self.bad(&format!("holds no {what}")))
    }

    /// The refusal of a NULL, or of no such column.
    pub(crate) fn null(self) -> Refusal {
        match self.bytes() {
            Err(refusal) => refusal,
            Ok(_) => (Reason::NullColumn, format!("the column {} is NULL", self.name)),
        }
    }

    /// The refusal of a value.
    pub(crate) fn bad(self, how: &str) -> Refusal {
        (Reason::BadValue, format!("the column {} {how}", self.name))
    }
}
