//! The recordings, and the names of the tables in them that are outboxes.

use postrider_relay::TableName;

use crate::wire;

/// What a real Postgres sent.
pub(crate) struct Corpus {
    /// Each a list of messages.
    pub(crate) recordings: Vec<Vec<Vec<u8>>>,
    /// The default outbox, and every table of one recording.
    pub(crate) outboxes: Vec<TableName>,
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
        let recordings: Vec<_> = recordings.into_iter().map(messages).collect();
        let mut outboxes = vec![TableName::new("postrider", "outbox")];
        for table in recordings[0].iter().filter_map(|message| wire::described(message)) {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the corpus is UTF-8");
            outboxes.push(TableName::new(&text(table.schema), &text(table.name)));
        }
        Self { recordings, outboxes }
    }

    /// Whether a table of this name, in bytes, is an outbox.
    pub(crate) fn has(&self, schema: &[u8], name: &[u8]) -> bool {
        let is = |table: &TableName| table.schema.as_bytes() == schema && table.name.as_bytes() == name;
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
