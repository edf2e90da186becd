//! What AMQP 0-9-1 can carry: found out before publishing, as the broker would close the channel
//! or the whole connection over it.

use crate::lsn::{Lsn, Position};
use crate::message::{HeaderValue, Message};

/// The property `app_id` of every message.
pub const APP_ID: &str = "postrider";

/// The most bytes of a short string (AMQP 0-9-1 section 4.2.5.3).
pub(crate) const SHORT_STRING_BYTES_MAX: usize = 255;

impl Message {
    /// The bytes of the message's content header frame, `postrider_position` and the frame's own
    /// 8 bytes included (AMQP 0-9-1 sections 2.3.5 and 2.3.5.2). Over the negotiated `frame_max`
    /// the broker closes the connection.
    pub fn header_frame_bytes(&self) -> usize {
        const FRAME: usize = 7 + 1;
        const CLASS_WEIGHT_BODY_SIZE_FLAGS: usize = 2 + 2 + 8 + 2;
        const DELIVERY_MODE: usize = 1;
        let short = |text: &str| 1 + text.len();
        let table = 4
            + header("postrider_position", 4 + printed_bytes(self.position))
            + self.headers.iter().map(|(name, value)| header(name, value_bytes(value))).sum::<usize>();
        FRAME
            + CLASS_WEIGHT_BODY_SIZE_FLAGS
            + short(&self.content_type)
            + table
            + DELIVERY_MODE
            + self.correlation_id.as_deref().map_or(0, short)
            + short(&self.message_id)
            + self.timestamp_s.map_or(0, |_| 8)
            + short(&self.event_type)
            + short(APP_ID)
    }
}

/// The length of the position's text, without making it.
fn printed_bytes(position: Position) -> usize {
    let hex = |half: u64| half.checked_ilog(16).unwrap_or(0) as usize + 1;
    let Lsn(lsn) = position.commit_lsn;
    let index = position.index.checked_ilog10().unwrap_or(0) as usize + 1;
    hex(lsn >> 32) + "/".len() + hex(lsn & 0xFFFF_FFFF) + "/".len() + index
}

fn header(name: &str, value_bytes: usize) -> usize {
    const TYPE: usize = 1;
    1 + name.len() + TYPE + value_bytes
}

fn value_bytes(value: &HeaderValue) -> usize {
    match value {
        HeaderValue::Text(text) => 4 + text.len(),
        HeaderValue::Bool(_) => 1,
        HeaderValue::Int(_) => 4,
        HeaderValue::Long(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    /// Writes the whole frame as the specification has it, byte by byte.
    fn frame(message: &Message) -> Vec<u8> {
        let short = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let long = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
        let value = |value: &HeaderValue| match value {
            HeaderValue::Text(text) => [b"S", &long(text.as_bytes())[..]].concat(),
            HeaderValue::Bool(bool) => vec![b't', u8::from(*bool)],
            HeaderValue::Int(int) => [b"I", &int.to_be_bytes()[..]].concat(),
            HeaderValue::Long(int) => [b"l", &int.to_be_bytes()[..]].concat(),
        };
        let position = HeaderValue::Text(message.position.to_string().into());
        let mut table = Vec::new();
        for (name, header) in &message.headers {
            table.extend([short(name), value(header)].concat());
        }
        table.extend([short("postrider_position"), value(&position)].concat());
        let payload = [
            &60_u16.to_be_bytes()[..],
            &0_u16.to_be_bytes(),
            &(message.body.len() as u64).to_be_bytes(),
            &0_u16.to_be_bytes(),
            &short(&message.content_type),
            &long(&table),
            &[2],
            &message.correlation_id.as_deref().map(short).unwrap_or_default(),
            &short(&message.message_id),
            &message.timestamp_s.map(|s| s.to_be_bytes().to_vec()).unwrap_or_default(),
            &short(&message.event_type),
            &short(APP_ID),
        ]
        .concat();
        [&[2, 0, 1][..], &long(&payload), &[0xCE]].concat()
    }

    fn value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            ".{0,300}".prop_map(|text| HeaderValue::Text(text.into())),
            any::<bool>().prop_map(HeaderValue::Bool),
            any::<i32>().prop_map(HeaderValue::Int),
            any::<i64>().prop_map(HeaderValue::Long),
        ]
    }

    proptest! {
        #[test]
        fn the_size_is_that_of_the_frame(
            commit_lsn in any::<u64>().prop_flat_map(|lsn| (0..64_u32).prop_map(move |bits| lsn >> bits)),
            index in any::<u32>().prop_flat_map(|index| (0..32_u32).prop_map(move |bits| index >> bits)),
            texts in proptest::collection::vec("[a-z]{0,255}", 4),
            optional in any::<Option<u64>>(),
            headers in proptest::collection::vec(("[a-zé]{0,100}", value()), 0..5),
        ) {
            let message = Message {
                position: Position { commit_lsn: Lsn(commit_lsn), index },
                exchange: "e".into(),
                routing_key: "r".into(),
                message_id: texts[0].clone().into(),
                event_type: texts[1].clone().into(),
                correlation_id: optional.map(|_| texts[2].clone().into()),
                content_type: texts[3].clone().into(),
                timestamp_s: optional,
                headers: headers.into_iter().map(|(name, value)| (name.into(), value)).collect(),
                body: Bytes::from_static(b"body"),
            };
            prop_assert_eq!(message.header_frame_bytes(), frame(&message).len());
        }
    }
}
