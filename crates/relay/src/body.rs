//! A message's body, which is the row's payload.

use bytes::Bytes;

use crate::reason::Reason;
use crate::relation::Kind;
use crate::row::{Cell, Refusal};

/// The payload exactly as Postgres prints it, a `bytea` as the bytes that the text stands for: at most `max` bytes.
pub(crate) fn body(cell: Cell<'_>, payload: Kind, max: usize) -> Result<Bytes, Refusal> {
    let Some(printed) = cell.bytes()? else { return Ok(Bytes::new()) };
    let fits = |bytes: usize| {
        if bytes <= max {
            return Ok(());
        }
        Err((Reason::MessageTooLarge, format!("the body has {bytes} bytes, at most {max} can be carried")))
    };
    match payload {
        Kind::Json | Kind::Text => {
            fits(printed.len())?;
            Ok(Bytes::copy_from_slice(printed))
        }
        Kind::Bytes => {
            let digits = printed.strip_prefix(b"\\x").ok_or_else(|| cell.bad("is not printed in hex"))?;
            fits(digits.len() / 2)?;
            hex(digits).ok_or_else(|| cell.bad("is not printed in hex"))
        }
    }
}

fn hex(digits: &[u8]) -> Option<Bytes> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, odd) = digits.as_chunks();
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(nibble(high)? << 4 | nibble(low)?).ok();
    if odd.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
