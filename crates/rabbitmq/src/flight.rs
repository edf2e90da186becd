//! One window on one channel: published in order, then awaited as a whole.
//!
//! Invariants: only this flight publishes on its channel while it lasts; and no verdict is read before a
//! [`sweep`](Flight::sweep), because a return may sit on another message's confirm.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, PublisherConfirm};
use postrider_relay::{Answer, Message, Position, Window, WindowEnd, WindowId};
use tokio::time::Instant;

use crate::envelope::{Envelope, TooLong, position_of};
use crate::settle::{Return, Unmatched, Word, verdicts};

/// Bytes of bodies that lapin holds for a channel before it has written them: it copies what it is given.
const UNWRITTEN_MAX: usize = 256 * 1024;

type Publishing = Pin<Box<dyn Future<Output = lapin::Result<PublisherConfirm>> + Send>>;

/// How far a message is.
enum Slot {
    /// Given to lapin.
    Writing(Publishing),
    /// On its way to the broker.
    Written(PublisherConfirm),
    /// The broker spoke. The word may be about its route: see [`Return`].
    Said(Word),
    /// The channel broke before.
    Lost,
}

/// A window that is out.
pub(crate) struct Flight {
    pub(crate) channel: Arc<Channel>,
    /// Whether it lost its lane, and the first answer was given.
    pub(crate) stray: bool,
    window: WindowId,
    positions: Vec<Position>,
    /// What is not yet given to lapin.
    queue: std::vec::IntoIter<Arc<Message>>,
    /// What is, in order.
    slots: Vec<Slot>,
    returns: Vec<Return>,
    /// The first slot that may still be in the writing, and the bytes of all that may.
    unwritten: (usize, usize),
    body_sizes: Vec<usize>,
    /// The slot that is awaited; those before it have their words.
    head: usize,
    /// Steps that slots took: the sign of life.
    steps: usize,
    error: Option<lapin::Error>,
    /// When it was handed over, and last took a step, by the session's clock.
    pub(crate) since: Duration,
    pub(crate) alive: Duration,
    handed: Instant,
    heard: Instant,
}

impl Flight {
    /// Prepares a window; [`poll`](Self::poll) publishes it.
    ///
    /// # Errors
    /// The answer, if a message cannot be encoded: nothing is published.
    pub(crate) fn new(window: Window, channel: Arc<Channel>, now: Duration) -> Result<Self, Answer> {
        let Window { id, messages } = window;
        let positions: Vec<_> = messages.iter().map(|message| message.position).collect();
        let body_sizes = messages.iter().map(|message| message.body.len()).collect();
        let handed = Instant::now();
        if let Err(error) = messages.iter().try_for_each(|message| Envelope::check(message)) {
            return Err(culprit_within(id, positions.len(), &error));
        }
        Ok(Self {
            channel,
            stray: false,
            window: id,
            slots: Vec::with_capacity(positions.len()),
            positions,
            queue: messages.into_iter(),
            returns: Vec::new(),
            unwritten: (0, 0),
            body_sizes,
            head: 0,
            steps: 0,
            error: None,
            since: now,
            alive: now,
            handed,
            heard: handed,
        })
    }

    /// Publishes and awaits; ready when every message has its word, or with the error that broke the channel.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, now: Duration) -> Poll<Result<(), lapin::Error>> {
        let before = self.steps;
        let end = self.poll_slots(cx);
        if self.steps != before {
            self.alive = now;
        }
        end
    }

    fn poll_slots(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), lapin::Error>> {
        loop {
            if let Some(error) = &self.error {
                return Poll::Ready(Err(error.clone()));
            }
            self.publish_what_fits();
            let (oldest, _) = self.unwritten;
            if self.queue.len() > 0 {
                ready!(self.poll_written(oldest, cx));
                self.unwritten.0 += 1;
                self.unwritten.1 -= self.body_sizes[oldest];
            } else if self.head < self.slots.len() {
                ready!(self.poll_slot(self.head, cx));
                self.head += 1;
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Gives lapin what it may hold, in order. The first poll of a publish does all but await the write.
    fn publish_what_fits(&mut self) {
        let mut nobody = Context::from_waker(Waker::noop());
        while self.unwritten.1 < UNWRITTEN_MAX && self.error.is_none() {
            let Some(message) = self.queue.next() else { return };
            self.unwritten.1 += message.body.len();
            let channel = Arc::clone(&self.channel);
            let publishing = async move {
                let Envelope { exchange, routing_key, properties } = Envelope::of(&message);
                let options = BasicPublishOptions { mandatory: true, immediate: false };
                channel.basic_publish(exchange, routing_key, options, &message.body, properties).await
            };
            self.slots.push(Slot::Writing(Box::pin(publishing)));
            let _ = self.poll_slot(self.slots.len() - 1, &mut nobody);
        }
    }

    /// Ready when the slot is past the writing.
    fn poll_written(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<()> {
        let _ = self.poll_slot(at, cx);
        if matches!(self.slots[at], Slot::Writing(_)) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Ready when the slot has its word, or never gets one.
    fn poll_slot(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let next = match &mut self.slots[at] {
                Slot::Writing(publishing) => match ready!(publishing.as_mut().poll(cx)) {
                    Ok(confirm) => Slot::Written(confirm),
                    Err(error) => self.lose(error),
                },
                Slot::Written(confirm) => match ready!(Pin::new(confirm).poll(cx)) {
                    Ok(Confirmation::Ack(returned)) => self.hear(Word::Ack, returned),
                    Ok(Confirmation::Nack(returned)) => self.hear(Word::Nack, returned),
                    // The channel is in confirm mode or it would not be a lane: count it as never said.
                    Ok(Confirmation::NotRequested) => self.lose(lapin::ErrorKind::FutureCompleted.into()),
                    Err(error) => self.lose(error),
                },
                Slot::Said(_) | Slot::Lost => return Poll::Ready(()),
            };
            self.slots[at] = next;
            self.steps += 1;
        }
    }

    fn hear(&mut self, word: Word, returned: Option<lapin::message::BasicReturnMessage>) -> Slot {
        self.heard = Instant::now();
        if let Some(message) = returned {
            let position = position_of(&message.properties).map(Into::into);
            self.returns.push(Return { position, code: message.reply_code });
        }
        Slot::Said(word)
    }

    /// Keeps the error that says most: the server's own word.
    fn lose(&mut self, error: lapin::Error) -> Slot {
        if self.error.as_ref().is_none_or(|known| !known.is_amqp_error()) {
            self.error = Some(error);
        }
        Slot::Lost
    }

    /// Takes in everything that has resolved, until a whole pass finds nothing new. After that the resolved are
    /// exact: a return arrives before its message's own confirm, so the confirm that carries it resolved no
    /// later, and the last pass has seen it.
    pub(crate) fn sweep(&mut self, now: Duration) {
        let mut nobody = Context::from_waker(Waker::noop());
        loop {
            let before = self.steps;
            for at in self.head..self.slots.len() {
                let _ = self.poll_slot(at, &mut nobody);
            }
            if self.steps == before {
                return;
            }
            self.alive = now;
        }
    }

    /// Whether [`poll`](Self::poll) is ready.
    pub(crate) fn is_over(&self) -> bool {
        let said = |slot: &Slot| matches!(slot, Slot::Said(_));
        self.error.is_some() || (self.slots.len() == self.positions.len() && self.slots.iter().all(said))
    }

    /// The error that broke the channel, best known after a sweep.
    pub(crate) fn error(&self) -> Option<&lapin::Error> {
        self.error.as_ref()
    }

    /// What is known now, ending as `end` says; [`WindowEnd::Complete`] if all is known.
    pub(crate) fn answer(&mut self, now: Duration, end: WindowEnd) -> Answer {
        self.sweep(now);
        let words = self.slots.iter().map(|slot| match slot {
            Slot::Said(word) => Some(*word),
            Slot::Writing(_) | Slot::Written(_) | Slot::Lost => None,
        });
        let all_said = words.clone().flatten().count() == self.positions.len();
        let (verdicts, unmatched) = verdicts(&self.positions, words, &self.returns);
        let end = match unmatched {
            // It can only be known in a window of one, and that is how the unanswered of such a window go on.
            Some(Unmatched { code }) => {
                WindowEnd::ChannelClosed { code, text: "a message came back without its position".to_owned() }
            }
            None if all_said => WindowEnd::Complete,
            None => end,
        };
        Answer { window: self.window, verdicts, end, took: self.heard.duration_since(self.handed) }
    }

    /// Closes the channel: what is still unanswered counts for nothing, and lapin forgets it.
    pub(crate) async fn close(self) {
        for slot in self.slots {
            // A publish written behind the close would end the whole connection.
            if let Slot::Writing(publishing) = slot {
                let _ = publishing.await;
            }
        }
        // Fails if the server closed it first, or if there is no connection any more.
        let _ = self.channel.close(200, ShortString::default()).await;
    }
}

/// The answer to a window with a message that AMQP cannot carry, of which nothing was published: as if the
/// server had closed the channel, so that its messages go on one by one and the culprit shows itself.
fn culprit_within(window: WindowId, messages: usize, error: &TooLong) -> Answer {
    Answer {
        window,
        verdicts: vec![postrider_relay::Verdict::Unanswered; messages],
        // syntax-error, AMQP 0-9-1 section 1.1
        end: WindowEnd::ChannelClosed { code: 502, text: error.to_string() },
        took: Duration::ZERO,
    }
}
