//! What the broker says of a channel, beside its answers.

use std::sync::{Arc, OnceLock};

use amqprs::callbacks::ChannelCallback;
use amqprs::channel::Channel;
use amqprs::{Ack, BasicProperties, Cancel, CloseChannel, Nack, Return};
use async_trait::async_trait;
use tokio::sync::mpsc;

/// What the broker said of a published message.
pub(super) enum Word {
    Confirmed { tag: u64, multiple: bool },
    Refused(String),
}

/// Passes on what the broker says; when the channel ends, so does the passage.
pub(super) struct Ear {
    pub(super) words: mpsc::UnboundedSender<Word>,
    /// Keeps why the broker has closed the channel.
    pub(super) farewell: Arc<OnceLock<String>>,
}

#[async_trait]
impl ChannelCallback for Ear {
    async fn close(&mut self, _: &Channel, close: CloseChannel) -> Result<(), amqprs::error::Error> {
        // Nobody listens any more when all is confirmed.
        let _ = self.words.send(Word::Refused(close.to_string()));
        // A channel is closed once.
        let _ = self.farewell.set(close.to_string());
        Ok(())
    }

    async fn cancel(&mut self, _: &Channel, _: Cancel) -> Result<(), amqprs::error::Error> {
        Ok(())
    }

    async fn flow(&mut self, _: &Channel, active: bool) -> Result<bool, amqprs::error::Error> {
        Ok(active)
    }

    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        let _ = self.words.send(Word::Confirmed { tag: ack.delivery_tag(), multiple: ack.mutiple() });
    }

    async fn publish_nack(&mut self, _: &Channel, nack: Nack) {
        let _ = self.words.send(Word::Refused(format!("nack of {}", nack.delivery_tag())));
    }

    async fn publish_return(&mut self, _: &Channel, returned: Return, _: BasicProperties, _: Vec<u8>) {
        let _ = self.words.send(Word::Refused(returned.to_string()));
    }
}
