//! One damaged input, drawn from a seed.

use crate::corpus::Corpus;
use crate::wire;

/// What reaches the relay.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A message of pgoutput.
    Message(Vec<u8>),
    /// The server says how far it has sent.
    Keepalive(u64),
    /// Another session begins.
    Session,
}

/// An eighth of the inputs damage nothing but the order of transactions: they must come through whole.
pub(crate) fn input(corpus: &Corpus, random: &mut fastrand::Rng) -> Vec<Step> {
    let mut messages = random.choice(&corpus.recordings).expect("there are recordings").clone();
    if random.bool() {
        messages.extend(random.choice(&corpus.recordings).expect("there are recordings").iter().cloned());
    }
    if random.u32(..4) == 0 {
        shuffle_transactions(&mut messages, random);
    }
    let wounds = if random.u32(..8) == 0 { 0 } else { random.usize(1..12) };
    for _ in 0..wounds {
        wound(&mut messages, corpus, random);
    }
    let mut steps: Vec<_> = messages.into_iter().map(Step::Message).collect();
    for _ in 0..random.usize(..4) {
        let step = if random.u32(..3) == 0 { Step::Session } else { Step::Keepalive(position(random)) };
        steps.insert(random.usize(..=steps.len()), step);
    }
    steps
}

fn position(random: &mut fastrand::Rng) -> u64 {
    random.u64(..) >> random.u32(..64)
}

/// Whole transactions change places; what stands between two of them stays with the first.
fn shuffle_transactions(messages: &mut Vec<Vec<u8>>, random: &mut fastrand::Rng) {
    let mut transactions: Vec<Vec<Vec<u8>>> = Vec::new();
    for message in messages.drain(..) {
        if message.first() == Some(&b'B') || transactions.is_empty() {
            transactions.push(Vec::new());
        }
        transactions.last_mut().expect("one was just pushed").push(message);
    }
    random.shuffle(&mut transactions);
    messages.extend(transactions.into_iter().flatten());
}

/// Damages the list of messages, or one of them.
fn wound(messages: &mut Vec<Vec<u8>>, corpus: &Corpus, random: &mut fastrand::Rng) {
    if messages.is_empty() {
        return;
    }
    let at = random.usize(..messages.len());
    match random.u32(..17) {
        0 => drop(messages.remove(at)),
        1 => messages.insert(at, messages[at].clone()),
        2 => {
            let other = random.usize(..messages.len());
            messages.swap(at, other);
        }
        // What describes a table is left out, comes again, or comes from another recording under an id of this one.
        3 => {
            let letter = *random.choice(b"RY").expect("two letters");
            messages.retain(|message| message.first() != Some(&letter) || random.bool());
        }
        4 => {
            let descriptions = corpus.recordings.iter().flatten().filter(|m| wire::described(m).is_some());
            let mut relation =
                random.choice(descriptions.collect::<Vec<_>>()).expect("there are some").clone();
            if let Some(id) = messages[at].get(1..5).filter(|_| random.bool()) {
                relation[1..5].copy_from_slice(id);
            }
            messages.insert(at, relation);
        }
        5 => {
            let other = random.choice(corpus.recordings.iter().flatten().collect::<Vec<_>>());
            let other = other.expect("there are messages");
            let (head, tail) = (random.usize(..=messages[at].len()), random.usize(..=other.len()));
            messages[at].truncate(head);
            messages[at].extend_from_slice(&other[tail..]);
        }
        6 => {
            let bytes = (0..random.usize(..40)).map(|_| random.u8(..));
            messages.insert(at, bytes.collect());
        }
        _ => spoil(&mut messages[at], random),
    }
}

/// Damages one message.
fn spoil(message: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if message.is_empty() {
        return;
    }
    let at = random.usize(..message.len());
    match random.u32(..8) {
        0 => message[at] ^= 1 << random.u32(..8),
        1 => message.truncate(at),
        2 => message.extend((0..random.usize(1..20)).map(|_| random.u8(..))),
        3 => message[0] = *random.choice(b"BCDIMORTUYAES").expect("letters"),
        4 | 5 => {
            let Some(field) = random.choice(wire::counts(message)) else { return };
            let was = message[field.clone()].iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
            let claims =
                [0, 1, was.wrapping_add(1), was.wrapping_sub(1), 0x7FFF_FFFF, 0x8000_0000, u32::MAX, 0xFFFF];
            let claim = random.choice(claims).expect("there are some").to_be_bytes();
            message[field.clone()].copy_from_slice(&claim[4 - field.len()..]);
        }
        6 => {
            let Some(cell) = random.choice(wire::cells(message)) else { return };
            message[cell.letter] = *random.choice(b"nutbx").expect("letters");
        }
        _ => {
            let Some(cell) = random.choice(wire::cells(message)) else { return };
            let value = value(random);
            let length = u32::try_from(value.len()).expect("values are short");
            let cell_bytes = [b"t", &length.to_be_bytes()[..], &value].concat();
            message.splice(cell.letter..cell.end, cell_bytes);
        }
    }
}

/// Something that a column may not hold, or may just hold.
fn value(random: &mut fastrand::Rng) -> Vec<u8> {
    const VALUES: [&str; 27] = [
        "",
        "null",
        "{}",
        "[]",
        "\"\"",
        "0",
        "-1",
        "00",
        "9223372036854775808",
        "-2147483649",
        "1e999999",
        "true",
        "{\"CC\": \"a\"}",
        "{\"bcc\": [1]}",
        "{\"postrider_position\": \"0/0/0\"}",
        "{\"a\": 1, \"a\": 2}",
        "{\"a\": -0.0, \"b\": 1E400, \"c\": 18446744073709551615}",
        "{\"\\u0000\": \"\\ud800\"}",
        "{\"a\": {}",
        "\\x",
        "\\x0",
        "\\xzz",
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59.999999+00",
        "4714-11-24 00:00:00+00 BC",
        "2026-02-30 25:61:61+99:99",
    ];
    match random.u32(..8) {
        0 => vec![b'a'; random.usize(250..260)],
        1 => vec![*random.choice(b"[{\"\\9").expect("bytes"); random.usize(1..20_000)],
        2 => (0..random.usize(..20)).map(|_| random.u8(..)).collect(),
        3 => format!(
            "{{\"{}\": \"{}\"}}",
            "é".repeat(random.usize(125..130)),
            "b".repeat(random.usize(..9000))
        )
        .into(),
        _ => random.choice(VALUES).expect("there are some").into(),
    }
}
