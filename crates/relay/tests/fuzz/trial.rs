//! One input given to the mapper and to a whole relay, and judged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use postrider_relay::quarantine::{Done, PositionPage, Work};
use postrider_relay::{
    Answer, Backoff, Broker, BrokerLimits, Change, Checked, Effect, Frame, Lsn, Mapper, MappingSettings,
    Message, Now, Position, ProtocolError, QuarantineScope, Relay, Settings, Unrouted, Verdict, Window,
    WindowEnd,
};

use crate::corpus::Corpus;
use crate::mutation::Step;
use crate::wire;

const FRAME_MAX: u32 = 8192;
const MESSAGE_BYTES_MAX: usize = 16 << 10;
const EPOCH_US: i64 = 946_684_800_000_000;

/// Every setting of a relay under trial, in this one place.
fn settings(corpus: &Corpus) -> Settings {
    Settings {
        mapping: mapping(corpus),
        lanes: 3,
        window_events: 16,
        events_per_key: 1,
        in_flight_events: 1 << 20,
        in_flight_bytes: 1 << 30,
        events_per_second: 0,
        slot: "postrider".to_owned(),
        attempts: 12,
        scope: QuarantineScope::Key,
        unrouted: Unrouted::Key,
        burst_events: 0,
        backoff: Backoff { first: Duration::from_millis(100), max: Duration::from_secs(30), jitter: 0.2 },
        report_every: Duration::from_secs(1),
        seed: 0,
    }
}

fn mapping(corpus: &Corpus) -> MappingSettings {
    MappingSettings {
        tables: corpus.outboxes.clone(),
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..MappingSettings::default()
    }
}

/// Tries one input; returns what came of its messages.
pub(crate) fn run(corpus: &Corpus, input: &[Step]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    map(corpus, input, &mut seen);
    Trial::new(corpus).run(input, &mut seen);
    seen
}

/// What a good run has seen: the input is damaged neither too much nor too little.
pub(crate) fn all_seen(outcomes: &BTreeMap<String, u64>) {
    for start in [
        "event",
        "refused: bad_header",
        "refused: bad_value",
        "refused: null_column",
        "refused: short_string",
        "refused: message_too_large",
        "unreadable: value expected",
        "ignored: other_table",
        "ignored: unknown",
        "session ends: begin",
        "an unreadable row is owed",
        "published",
        "stored",
        "a request followed",
    ] {
        assert!(
            outcomes.keys().any(|outcome| outcome.starts_with(start)),
            "no input had the outcome {start:?}"
        );
    }
}

/// The mapper alone, with whatever position.
fn map(corpus: &Corpus, input: &[Step], seen: &mut BTreeSet<String>) {
    let mut mapper = Mapper::new(mapping(corpus));
    for step in input {
        let Step::Message(message) = step else { continue };
        let position = Position { commit_lsn: Lsn(u64::MAX), index: u32::MAX };
        seen.insert(match mapper.read(message, position) {
            Ok(Change::Event(event)) => {
                check(&event.message);
                "event".to_owned()
            }
            Ok(Change::Refused(refused)) => format!("refused: {}", refused.reason),
            Ok(Change::Command(command)) => format!("command: {}", command.verb.as_str()),
            Ok(Change::BadCommand(_)) => "no command".to_owned(),
            Ok(Change::Ignored(ignored)) => format!("ignored: {}", ignored.as_str()),
            Ok(Change::Description) => "description".to_owned(),
            Err(error) => format!("unreadable: {} expected", error.what),
        });
    }
}

/// A whole relay, and what must be true of it.
struct Trial<'a> {
    corpus: &'a Corpus,
    relay: Relay,
    now: Now,
    /// In this session: the tables that were described, and whether they are outboxes.
    described: HashMap<u32, bool>,
    /// The commit position of the transaction that is open.
    open: Option<u64>,
    /// Rows that were read in this session and are owed.
    rows: usize,
    /// The highest position that may be reported as long as nothing is paid.
    payable: u64,
}

impl<'a> Trial<'a> {
    fn new(corpus: &'a Corpus) -> Self {
        let now = Now { mono: Duration::ZERO, unix_us: EPOCH_US };
        let mut relay = Relay::new(settings(corpus));
        relay.session(now);
        Self { corpus, relay, now, described: HashMap::new(), open: None, rows: 0, payable: 0 }
    }

    /// First without a broker, so that nothing is ever paid; then it comes and takes all.
    fn run(mut self, input: &[Step], seen: &mut BTreeSet<String>) {
        for step in input {
            match step {
                Step::Message(message) => self.message(message, seen),
                Step::Keepalive(wal_end) => {
                    if self.open.is_none() && self.rows == 0 {
                        self.payable = self.payable.max(*wal_end);
                    }
                    self.ingest(Frame::Keepalive { wal_end: Lsn(*wal_end), reply_requested: true })
                        .expect("it is sound");
                }
                Step::Session => self.session(),
            }
            self.act();
        }
        self.deliver(seen);
    }

    fn session(&mut self) {
        self.relay.session(self.now);
        self.described.clear();
        (self.open, self.rows, self.payable) = (None, 0, 0);
    }

    fn message(&mut self, message: &[u8], seen: &mut BTreeSet<String>) {
        let frame = frame(message);
        let row = message.first() == Some(&b'I') && self.open.is_some();
        let owed = self.owed();
        if let Err(error) = self.ingest(frame.clone()) {
            assert!(!row, "a row ended the session: {error}");
            // The shell gives the session up, and nothing of it is acknowledged.
            let why = match error {
                ProtocolError::Nested(_) => "begin inside a transaction".to_owned(),
                ProtocolError::Outside(what) => format!("{what} outside of a transaction"),
                ProtocolError::Mismatch { .. } => "commit of another transaction".to_owned(),
                ProtocolError::Malformed(text) => {
                    text.split(" at byte").next().unwrap_or_default().to_owned()
                }
            };
            seen.insert(format!("session ends: {why}"));
            return self.session();
        }
        match frame {
            Frame::Begin { commit_lsn, .. } => self.open = Some(commit_lsn.0),
            Frame::Commit { end_lsn, .. } => {
                self.open = None;
                if self.rows == 0 {
                    self.payable = self.payable.max(end_lsn.0);
                }
            }
            Frame::Change(_) => {
                if let Some(table) = wire::described(message) {
                    self.described.insert(table.id, self.corpus.has(table.schema, table.name));
                }
            }
            Frame::Message { .. } | Frame::Keepalive { .. } => {}
        }
        let other = wire::relation_of(message).and_then(|id| self.described.get(&id)) == Some(&false);
        if row && !other {
            assert_eq!(self.owed(), owed + 1, "a row of an outbox is passed over: {message:?}");
            self.rows += 1;
            if wire::relation_of(message).is_none_or(|id| !self.described.contains_key(&id)) {
                seen.insert("an unreadable row is owed".to_owned());
            }
        } else if row {
            let more = self.owed() - owed;
            assert!(more <= 1, "a row is owed {more} times");
            self.rows += more;
        } else {
            assert_eq!(self.owed(), owed, "what is no row is owed: {message:?}");
        }
    }

    fn ingest(&mut self, frame: Frame) -> Result<(), ProtocolError> {
        self.now.mono += Duration::from_millis(50);
        self.relay.ingest(self.now, frame)
    }

    fn owed(&self) -> usize {
        self.relay.snapshot(self.now).in_flight_events
    }

    /// Does what the relay asks for, without a broker, and with a quarantine that takes nothing.
    fn act(&mut self) {
        while let Some(effect) = self.relay.poll(self.now) {
            match effect {
                Effect::Check(id) => self.relay.checked(self.now, id, Checked::Sound),
                Effect::Report(watermark) => {
                    let (Lsn(position), payable) = (watermark.lsn(), self.payable);
                    assert!(position <= payable, "{position} was reported, and only {payable} is paid");
                }
                Effect::Quarantine(id, work) => {
                    let known = matches!(&*work, Work::Open { .. } | Work::Positions { .. });
                    self.relay.quarantined(self.now, id, known.then(|| done(&work)));
                }
                Effect::Publish(_) => panic!("something was published without a broker"),
                Effect::LeavePostgres | Effect::Delivered(_) | Effect::Notice(_) => {}
            }
        }
    }

    /// The broker takes everything that can be published, and the quarantine all else: then nothing is owed.
    fn deliver(&mut self, seen: &mut BTreeSet<String>) {
        let owed = self.owed();
        self.relay.broker(self.now, Broker::Ready(BrokerLimits { frame_max: FRAME_MAX }));
        let (mut published, mut stored, mut requests) = (0, 0, 0);
        // Whatever waits between two tries has waited long enough after some of these.
        for _ in 0..10 {
            self.now.mono += Duration::from_secs(60);
            while let Some(effect) = self.relay.poll(self.now) {
                match effect {
                    Effect::Check(id) => self.relay.checked(self.now, id, Checked::Unreachable),
                    Effect::Quarantine(id, work) => {
                        match &*work {
                            Work::Store(rows) => stored += rows.len(),
                            Work::Release(_) | Work::Discard(_) => requests += 1,
                            _ => {}
                        }
                        self.relay.quarantined(self.now, id, Some(done(&work)));
                    }
                    Effect::Publish(window) => {
                        published += window.messages.len();
                        self.confirm(&window);
                    }
                    Effect::Report(_) | Effect::LeavePostgres | Effect::Delivered(_) | Effect::Notice(_) => {}
                }
            }
        }
        assert_eq!(self.owed(), 0, "nothing is owed in the end");
        assert_eq!(published + stored + requests, owed, "what was owed was published, stored or followed");
        let outcomes = [(published, "published"), (stored, "stored"), (requests, "a request followed")];
        seen.extend(outcomes.into_iter().filter(|(count, _)| *count > 0).map(|(_, word)| word.to_owned()));
    }

    fn confirm(&mut self, window: &Window) {
        for message in &window.messages {
            check(message);
            assert!(message.header_frame_bytes() <= FRAME_MAX as usize, "a header frame is too large");
        }
        let verdicts = vec![Verdict::Confirmed; window.messages.len()];
        let (window, end, took) = (window.id, WindowEnd::Complete, Duration::ZERO);
        self.relay.answer(self.now, &Answer { window, verdicts, end, took });
    }
}

/// What a table answers in which nothing was parked before, and of which nobody is interested in a row.
fn done(work: &Work) -> Done {
    let page = PositionPage { positions: Vec::new(), complete: true };
    match work {
        Work::Open { .. } => Done::Opened { parked: Vec::new(), undelivered: 0, released: false, page },
        Work::Positions { .. } => Done::Positions(page),
        Work::Store(rows) => Done::Stored { new: rows.len() as u64 },
        Work::Release(_) => Done::Released { rows: 0, aggregates: Vec::new() },
        Work::Discard(_) => Done::Discarded { rows: 0, free: Vec::new() },
        Work::Page { .. } => Done::Page { rows: Vec::new(), more: false },
        Work::Delivered(_) => Done::Delivered { rows: 0, free: Vec::new() },
        Work::PutBack(_) => Done::PutBack,
    }
}

/// What the replication client makes of a message: it reads begin, commit and logical messages itself.
fn frame(message: &[u8]) -> Frame {
    match (message.first(), message.len()) {
        (Some(b'B'), 21) => Frame::Begin {
            commit_lsn: Lsn(wire::number(message, 1)),
            committed_us: wire::number(message, 9).cast_signed().saturating_add(EPOCH_US),
        },
        (Some(b'C'), 26) => Frame::Commit {
            commit_lsn: Lsn(wire::number(message, 2)),
            end_lsn: Lsn(wire::number(message, 10)),
        },
        (Some(b'M'), 15..) => Frame::Message { transactional: message[1] & 1 == 1 },
        _ => Frame::Change(Bytes::copy_from_slice(message)),
    }
}

/// A message that the broker would not close the channel or the connection over (AMQP 0-9-1, section 4.2.5.3).
fn check(message: &Message) {
    let Message { exchange, routing_key, message_id, event_type, correlation_id, content_type, .. } = message;
    let correlation_id = correlation_id.as_deref().unwrap_or_default();
    for text in [&**exchange, routing_key, message_id, event_type, correlation_id, content_type] {
        assert!(text.len() <= 255, "a short string of {} bytes", text.len());
    }
    assert!(message.body.len() <= MESSAGE_BYTES_MAX, "a body of {} bytes", message.body.len());
    let mut names: Vec<&str> = message.headers.iter().map(|(name, _)| &**name).collect();
    for name in &names {
        assert!(name.len() <= 255, "a header's name of {} bytes", name.len());
        assert!(!name.starts_with("postrider_") && !["CC", "BCC"].contains(name), "the header {name}");
    }
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two headers of one name: {names:?}");
}
