//! Positions in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A position in the write-ahead log, in bytes; printed as Postgres prints `pg_lsn`
/// (PostgreSQL manual, "`pg_lsn` Type").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The text is not two hexadecimal numbers joined by a slash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {0:?} as an LSN: expected two hexadecimal numbers of up to 8 digits, such as 0/16B3748")]
pub struct LsnError(pub String);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = LsnError;

    fn from_str(text: &str) -> Result<Self, LsnError> {
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| LsnError(text.to_owned()))
    }
}

/// Where an event stands: the LSN of its transaction's commit record, and its index among all
/// row changes received in that transaction, from 0. Printed as `0/16B3748/3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The position of the commit record (not of its end).
    pub commit_lsn: Lsn,
    /// The row change's index in the transaction, mapped or not.
    pub index: u32,
}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let parts = text.rsplit_once('/').and_then(|(lsn, index)| {
            let plain = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
            let index = plain.then(|| index.parse().ok()).flatten()?;
            Some(Position { commit_lsn: lsn.parse().ok()?, index })
        });
        parts.ok_or_else(|| PositionError(text.to_owned()))
    }
}

/// The text is not an LSN and an index joined by a slash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {0:?} as a position: expected an LSN and an index, such as 0/16B3748/3")]
pub struct PositionError(pub String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.commit_lsn, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_that_is_no_lsn_is_refused() {
        for text in ["", "/", "0", "0/", "/0", "g/0", "0/0/0", "123456789/0", "+1/0", " 0/0", "0/-1"] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
        assert_eq!("0/16b3748".parse(), Ok(Lsn(0x16B_3748)));
    }

    proptest! {
        #[test]
        fn every_lsn_reads_back(raw: u64) {
            prop_assert_eq!(Lsn(raw).to_string().parse::<Lsn>(), Ok(Lsn(raw)));
        }
    }
}
