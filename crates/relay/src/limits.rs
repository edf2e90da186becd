//! What AMQP 0-9-1 can carry: found out before publishing, as the broker would close the channel
//! or the whole connection over it.

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
            + header("postrider_position", 4 + self.position.to_string().len())
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
