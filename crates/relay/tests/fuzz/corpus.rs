//! The recordings, and the names of the tables in them that are outboxes.

use postrider_relay::RelationName;

use crate::wire;

/// What a real Postgres sent.
pub(crate) struct Corpus {
    /// Each a list of messages.
    pub(crate) recordings: Vec<Vec<Vec<u8>>>,
    /// The default outbox, and every table of one recording.
    pub(crate) outboxes: Vec<RelationName>,
}

impl Corpus {
    pub(crate) fn read() -> Self {
        let types = include_bytes!("../../corpus/types.bin");
        let recordings: [&[u8]; 5] = [
            types,
            include_bytes!("../../corpus/default.bin"),
            include_bytes!("../../corpus/transactions.bin"),
            include_bytes!("../../corpus/ddl.bin"),
            include_bytes!("../../corpus/partitions.bin"),
        ];
        let mut recordings: Vec<_> = recordings.into_iter().map(messages).collect();
        let mut outboxes = vec![RelationName::new("postrider", "outbox")];
        for table in recordings[0].iter().filter_map(|message| wire::described(message)) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the corpus is UTF-8");
            outboxes.push(RelationName::new(&text(table.schema), &text(table.name)));
        }
        recordings.push(requests());
        Self { recordings, outboxes }
    }

    /// Whether a table of this name, in bytes, is an outbox.
    pub(crate) fn has(&self, schema: &[u8], name: &[u8]) -> bool {
        let is = |table: &RelationName| table.schema.as_bytes() == schema && table.name.as_bytes() == name;
        self.outboxes.iter().any(is)
    }
}

/// The messages of a recording, each behind its length.
fn messages(mut recording: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = recording.split_first_chunk() {
        let (message, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        messages.push(message.to_vec());
        recording = rest;
    }
    messages
}

/// What operators ask in two transactions, in the form of a recording: the scripts of the corpus ask nothing.
fn requests() -> Vec<Vec<u8>> {
    const COLUMNS: [&str; 4] = ["id", "verb", "argument", "requested_by"];
    const ID: &[u8] = &77_u32.to_be_bytes();
    let argument = r#"{"slot": "postrider", "aggregates": ["00112233445566778899aabbccddeeff"], "positions": ["0/1/2"]}"#;
    let columns = COLUMNS.map(|name| [b"\0", name.as_bytes(), b"\0\0\0\0\x19\xff\xff\xff\xff"].concat());
    let relation = [b"R", ID, b"postrider\0command\0d\0\x04", &columns.concat()].concat();
    let mut messages = vec![relation];
    for (number, verb) in (1_u64..).zip(["retry", "discard"]) {
        let commit_lsn = (number << 32).to_be_bytes();
        let end_lsn = ((number << 32) + 48).to_be_bytes();
        let time = [0; 8];
        let values = [number.to_string().as_str(), verb, argument, "clerk"].map(|text| {
            let length = u32::try_from(text.len()).expect("it is short").to_be_bytes();
            [b"t", &length[..], text.as_bytes()].concat()
        });
        messages.extend([
            [b"B", &commit_lsn[..], &time, &[0, 0, 0, 9]].concat(),
            [b"I", ID, b"N\0\x04", &values.concat()].concat(),
            [b"C\0", &commit_lsn[..], &end_lsn, &time].concat(),
        ]);
    }
    messages
}
