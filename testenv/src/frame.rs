//! Where frames begin and end in a TCP stream of Postgres or AMQP, so that a link can be cut inside one.
//!
//! Lengths: <https://www.postgresql.org/docs/current/protocol-overview.html>, AMQP 0-9-1 section 4.2.3.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a payload that a predicate may look at.
const PEEK: usize = 32;

/// What is spoken over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The Postgres protocol, version 3. After a yes to TLS there are no frames to see.
    Postgres,
    /// AMQP 0-9-1 without TLS.
    Amqp,
    /// Bytes without frames: TLS from the start, say.
    Opaque,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// One frame, known by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its place in this direction of this connection, from 1.
    pub number: u64,
    /// Postgres' letter of the message, AMQP's frame type; 0 for what comes before the first framed message.
    pub kind: u8,
    /// The bytes of the whole frame, its length and its end included.
    pub size: usize,
    /// The first bytes of the payload, up to 32.
    pub payload: Vec<u8>,
    protocol: Protocol,
}

impl Frame {
    /// Whether this carries a logical replication message of this letter (`I` an insert, `C` a commit): a `CopyData`
    /// with an `XLogData`, whose 25 bytes stand before the letter.
    pub fn is_wal(&self, letter: u8) -> bool {
        self.protocol == Protocol::Postgres
            && self.kind == b'd'
            && self.payload.first() == Some(&b'w')
            && self.payload.get(25) == Some(&letter)
    }

    /// Whether this is an AMQP method of this class and number: 60, 40 is `basic.publish`, 60, 80 `basic.ack`.
    pub fn is_method(&self, class: u16, method: u16) -> bool {
        let [c, m] = [class.to_be_bytes(), method.to_be_bytes()];
        self.protocol == Protocol::Amqp
            && self.kind == 1
            && self.payload.starts_with(&[c[0], c[1], m[0], m[1]])
    }

    /// Whether this is a part of an AMQP message's body.
    pub fn is_body(&self) -> bool {
        self.protocol == Protocol::Amqp && self.kind == 3
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match (self.protocol, self.kind) {
            (Protocol::Postgres, b'd') if self.payload.len() > 25 && self.payload[0] == b'w' => {
                write!(out, "frame {number} (WAL, message {:?})", char::from(self.payload[25]))
            }
            (Protocol::Amqp, 1) if self.payload.len() >= 4 => {
                let [class, method] =
                    [0, 2].map(|at| u16::from_be_bytes([self.payload[at], self.payload[at + 1]]));
                write!(out, "frame {number} (method {class}.{method})")
            }
            (Protocol::Amqp, 2) => write!(out, "frame {number} (content header)"),
            (Protocol::Amqp, 3) => write!(out, "frame {number} (body)"),
            (_, 0) => write!(out, "frame {number} (greeting)"),
            (Protocol::Postgres, letter) => write!(out, "frame {number} (message {:?})", char::from(letter)),
            (_, kind) => write!(out, "frame {number} (type {kind})"),
        }
    }
}

/// Finds frames in one direction of one connection.
#[derive(Debug)]
pub(crate) struct Scanner {
    protocol: Protocol,
    direction: Direction,
    greeted: bool,
    frames: u64,
    questions: Questions,
}

/// How many encryption requests of the client the server has not answered yet: its answer is a byte without a frame.
pub(crate) type Questions = Arc<AtomicUsize>;

impl Scanner {
    /// The scanner of one direction; both directions of a connection share `questions`.
    pub(crate) fn new(protocol: Protocol, direction: Direction, questions: Questions) -> Self {
        Self { protocol, direction, greeted: false, frames: 0, questions }
    }

    /// The frame that begins at `bytes`, or nothing while too little of it has come.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Option<Frame> {
        let (kind, head, size) = match self.protocol {
            Protocol::Postgres => self.postgres(bytes)?,
            Protocol::Amqp => amqp(bytes)?,
            Protocol::Opaque => (0, bytes.len(), bytes.len()),
        };
        if bytes.is_empty() || bytes.len() < size.min(head + PEEK) {
            return None;
        }
        self.frames += 1;
        let payload = bytes[head.min(size)..size.min(head + PEEK)].to_vec();
        self.after(kind, &payload);
        Some(Frame { number: self.frames, kind, size, payload, protocol: self.protocol })
    }

    /// Kind, bytes before the payload, and size of a Postgres message.
    fn postgres(&self, bytes: &[u8]) -> Option<(u8, usize, usize)> {
        if self.direction == Direction::ToServer && !self.greeted {
            return Some((0, 4, length(bytes, 0)?));
        }
        if self.direction == Direction::ToClient && self.questions.load(Ordering::Acquire) > 0 {
            return Some((0, 0, 1));
        }
        Some((*bytes.first()?, 5, 1 + length(bytes, 1)?))
    }

    /// Follows the handshake of Postgres, the only one that changes how bytes are framed.
    fn after(&mut self, kind: u8, payload: &[u8]) {
        if self.protocol != Protocol::Postgres || kind != 0 {
            return;
        }
        match self.direction {
            Direction::ToServer => match length(payload, 0) {
                // SSLRequest and GSSENCRequest: the startup message is still to come, unless TLS begins.
                Some(80_877_103 | 80_877_104) => {
                    self.questions.fetch_add(1, Ordering::AcqRel);
                }
                _ => self.greeted = true,
            },
            Direction::ToClient => {
                self.questions.fetch_sub(1, Ordering::AcqRel);
                if payload == b"S" || payload == b"G" {
                    self.protocol = Protocol::Opaque;
                }
            }
        }
    }
}

/// Kind, bytes before the payload, and size of an AMQP frame; its last byte is the end mark.
fn amqp(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    if *bytes.first()? == b'A' {
        return Some((0, 0, 8));
    }
    Some((bytes[0], 7, 7 + length(bytes, 3)? + 1))
}

fn length(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(four)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of a stream, whatever the sizes of the pieces it comes in.
    fn check(
        protocol: Protocol,
        direction: Direction,
        asked: usize,
        stream: &[u8],
        expected: &[(u8, usize)],
    ) {
        for piece in 1..=stream.len() {
            let mut scanner = Scanner::new(protocol, direction, Arc::new(AtomicUsize::new(asked)));
            let mut held = Vec::new();
            let mut left = 0;
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                held.extend_from_slice(bytes);
                loop {
                    let gone = left.min(held.len());
                    held.drain(..gone);
                    left -= gone;
                    if left > 0 {
                        break;
                    }
                    let Some(frame) = scanner.next(&held) else { break };
                    left = frame.size;
                    found.push((frame.kind, frame.size));
                }
            }
            assert_eq!(found, expected, "in pieces of {piece}");
            assert!(held.is_empty() && left == 0, "in pieces of {piece}: {} bytes over", held.len());
        }
    }

    fn typed(letter: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len() + 4).expect("a short payload");
        [&[letter][..], &length.to_be_bytes(), payload].concat()
    }

    fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a short payload");
        [&[kind, 0, 1][..], &length.to_be_bytes(), payload, &[0xCE]].concat()
    }

    #[test]
    fn a_postgres_client_asks_for_tls_and_starts_without() {
        let request = [8u32.to_be_bytes(), 80_877_103u32.to_be_bytes()].concat();
        let startup = [&14u32.to_be_bytes()[..], &196_608u32.to_be_bytes(), b"user\0\0"].concat();
        let stream = [request, startup, typed(b'Q', b"select 1\0"), typed(b'S', b"")].concat();
        check(Protocol::Postgres, Direction::ToServer, 0, &stream, &[(0, 8), (0, 14), (b'Q', 14), (b'S', 5)]);
    }

    #[test]
    fn a_postgres_server_declines_tls_and_streams() {
        let stream = [b"N".to_vec(), typed(b'R', &[0; 4]), typed(b'd', &[b'w'; 200])].concat();
        check(Protocol::Postgres, Direction::ToClient, 1, &stream, &[(0, 1), (b'R', 9), (b'd', 205)]);
    }

    #[test]
    fn amqp_frames_follow_the_greeting() {
        let stream =
            [b"AMQP\0\0\x09\x01".to_vec(), framed(1, &[0, 60, 0, 40]), framed(3, &[7; 99]), framed(8, b"")];
        check(Protocol::Amqp, Direction::ToServer, 0, &stream.concat(), &[(0, 8), (1, 12), (3, 107), (8, 8)]);
    }

    #[test]
    fn a_frame_says_what_it_carries() {
        let scan = |protocol, direction, bytes: &[u8]| {
            let mut scanner = Scanner::new(protocol, direction, Questions::default());
            scanner.next(bytes).expect("a whole frame")
        };
        let mut wal = vec![b'w'];
        wal.extend_from_slice(&[0; 24]);
        wal.extend_from_slice(b"Iand so on, longer than what a predicate sees");
        let insert = scan(Protocol::Postgres, Direction::ToClient, &typed(b'd', &wal));
        assert!(insert.is_wal(b'I') && !insert.is_wal(b'C'));
        assert_eq!(insert.to_string(), "frame 1 (WAL, message 'I')");
        let publish = scan(Protocol::Amqp, Direction::ToServer, &framed(1, &[0, 60, 0, 40, 0]));
        assert!(publish.is_method(60, 40) && !publish.is_method(60, 80) && !publish.is_body());
        assert_eq!(publish.to_string(), "frame 1 (method 60.40)");
    }
}
