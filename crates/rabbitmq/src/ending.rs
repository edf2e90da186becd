//! What an error of lapin ended: one channel or the connection, and what that means for windows that are out.

use lapin::ErrorKind;
use postrider_relay::WindowEnd;

use crate::outage::{Outage, server_word};

/// What is known of a lost connection.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The error that ended it.
    Because(lapin::Error),
    /// We gave it up.
    Silent(Outage),
    /// lapin will say.
    Unknown,
}

/// Whether the error can be one channel's alone: if the connection still stands, it is.
pub(crate) fn may_end_one_channel(error: &lapin::Error) -> bool {
    let own = matches!(
        error.kind(),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidChannel(_) | ErrorKind::FutureCompleted
    );
    own || error.is_amqp_soft_error()
}

/// The end of a window whose channel is gone.
pub(crate) fn channel_end(error: &lapin::Error) -> WindowEnd {
    let (code, text) = match server_word(error) {
        Some(word) => (word.get_id(), word.get_message().to_string()),
        None => (0, error.to_string()),
    };
    WindowEnd::ChannelClosed { code, text }
}

/// The end of a window whose connection is gone: a 50x may be a message's doing, anything else is not (AMQP 0-9-1,
/// section 1.1).
pub(crate) fn connection_end(error: Option<&lapin::Error>) -> WindowEnd {
    match error.and_then(server_word) {
        // 504 is never a message's doing: lapin was still writing to a channel that the server had just closed.
        Some(word) if (500..510).contains(&word.get_id()) && word.get_id() != 504 => {
            WindowEnd::ConnectionClosed { code: word.get_id(), text: word.get_message().to_string() }
        }
        _ => WindowEnd::Disconnected,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn server_said(code: u16) -> lapin::Error {
        let error = AMQPError::from_id(code, "because".into());
        ErrorKind::ProtocolError(error.expect("a code of AMQP 0-9-1")).into()
    }

    #[test]
    fn only_a_50x_may_be_a_messages_doing() {
        for code in [501, 502, 503, 505, 506] {
            let end = WindowEnd::ConnectionClosed { code, text: "because".to_owned() };
            assert_eq!(connection_end(Some(&server_said(code))), end);
        }
        for code in [320, 402, 504, 530, 540, 541] {
            assert_eq!(connection_end(Some(&server_said(code))), WindowEnd::Disconnected, "{code}");
        }
        for error in [None, Some(&ErrorKind::MissingHeartbeatError.into())] {
            assert_eq!(connection_end(error), WindowEnd::Disconnected);
        }
    }

    #[test]
    fn a_soft_error_may_be_one_channels() {
        for code in [311, 403, 404, 405, 406] {
            assert!(may_end_one_channel(&server_said(code)), "{code}");
        }
        for error in [server_said(320), server_said(504), ErrorKind::MissingHeartbeatError.into()] {
            assert!(!may_end_one_channel(&error), "{error}");
        }
    }
}
