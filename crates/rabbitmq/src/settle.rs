//! From what the broker said, message by message, to verdicts.
//!
//! lapin hands a returned message to whichever confirm resolves next, so a confirm tells nothing about *its*
//! message until the returns of all confirms that resolved no later are known. The caller makes sure of that
//! (`Flight::sweep`); here returns find their messages by position.

use std::collections::HashMap;

use postrider_relay::{Position, Verdict};

/// The broker's word in one confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Ack,
    Nack,
}

/// A message that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    /// Its position header, as bytes.
    pub(crate) position: Option<Box<[u8]>>,
    pub(crate) code: u16,
}

/// A message came back that is none of the window's: any of the confirmed could be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmatched {
    pub(crate) code: u16,
}

/// One verdict for each position. `words` may be shorter: what was not published has no word.
///
/// # Errors
/// A return that fits no message: then nothing is confirmed.
pub(crate) fn verdicts(
    positions: &[Position],
    words: impl Iterator<Item = Option<Word>>,
    returns: &[Return],
) -> (Vec<Verdict>, Option<Unmatched>) {
    let mut verdicts: Vec<Verdict> = words
        .map(|word| match word {
            Some(Word::Ack) => Verdict::Confirmed,
            Some(Word::Nack) => Verdict::Nacked,
            None => Verdict::Unanswered,
        })
        .collect();
    verdicts.resize(positions.len(), Verdict::Unanswered);
    let mut unmatched = None;
    if !returns.is_empty() {
        let places: HashMap<Vec<u8>, usize> =
            positions.iter().enumerate().map(|(at, position)| (position.to_string().into(), at)).collect();
        for Return { position, code } in returns {
            let place = match (position, positions) {
                // Whatever came back, it can only be this one.
                (_, [_]) => Some(0),
                (Some(position), _) => places.get(&**position).copied(),
                (None, _) => None,
            };
            match place {
                // Its own confirm may not be in yet; it came back all the same.
                Some(place) => verdicts[place] = Verdict::Returned { code: *code },
                None => unmatched = Some(Unmatched { code: *code }),
            }
        }
    }
    if unmatched.is_some() {
        for verdict in verdicts.iter_mut().filter(|verdict| **verdict == Verdict::Confirmed) {
            *verdict = Verdict::Unanswered;
        }
    }
    (verdicts, unmatched)
}

#[cfg(test)]
mod tests {
    use postrider_relay::Lsn;

    use super::*;

    const ACK: Option<Word> = Some(Word::Ack);
    const NACK: Option<Word> = Some(Word::Nack);

    fn position(index: u32) -> Position {
        Position { commit_lsn: Lsn(0x16B_3748), index }
    }

    fn returned(index: u32) -> Return {
        Return { position: Some(position(index).to_string().into_bytes().into()), code: 312 }
    }

    fn check(words: &[Option<Word>], returns: &[Return], expected: &str) {
        let positions: Vec<_> = (0..3).map(position).collect();
        let (verdicts, unmatched) = verdicts(&positions, words.iter().copied(), returns);
        let mut letters: String = verdicts
            .iter()
            .map(|verdict| match verdict {
                Verdict::Confirmed => 'c',
                Verdict::Nacked => 'n',
                Verdict::Returned { code: 312 } => 'r',
                Verdict::Returned { .. } => '?',
                Verdict::Unanswered => 'u',
            })
            .collect();
        if unmatched.is_some() {
            letters.push('!');
        }
        assert_eq!(letters, expected, "{words:?} {returns:?}");
    }

    #[test]
    fn every_message_gets_its_own_word() {
        check(&[ACK, NACK, None], &[], "cnu");
        check(&[ACK], &[], "cuu");
    }

    #[test]
    fn a_return_is_its_positions_whatever_confirm_carried_it() {
        check(&[ACK, ACK, ACK], &[returned(2)], "ccr");
        check(&[ACK, ACK, ACK], &[returned(2), returned(0)], "rcr");
        check(&[ACK, None, None], &[returned(1)], "cru");
        check(&[ACK, NACK, ACK], &[returned(1)], "crc");
    }

    #[test]
    fn a_return_that_fits_none_lets_nothing_be_confirmed() {
        let foreign = Return { position: Some(b"0/0/0".as_slice().into()), code: 312 };
        let blank = Return { position: None, code: 312 };
        check(&[ACK, NACK, ACK], std::slice::from_ref(&foreign), "unu!");
        check(&[ACK, ACK, ACK], &[blank.clone(), returned(0)], "ruu!");
        let (alone, unmatched) = verdicts(&[position(0)], [ACK].into_iter(), &[blank]);
        assert_eq!((alone, unmatched), (vec![Verdict::Returned { code: 312 }], None));
    }
}
