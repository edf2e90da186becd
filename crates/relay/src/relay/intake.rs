//! From a row change to a debt: to the broker, or at once to the quarantine.

use super::Relay;
use crate::change::{Change, Ignored};
use crate::command::{Command, Verb};
use crate::effect::Notice;
use crate::ledger::ProtocolError;
use crate::lsn::Position;
use crate::mapping::{AggregateKey, Mapped, Refused};
use crate::pending::{Condemned, Pending, Poison};
use crate::quarantine::{ParkedKey, Scope, Work};
use crate::reason::Reason;
use crate::works::Item;

impl Relay {
    pub(super) fn change(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let commit_lsn = self.ledger.open();
        let position = Position { commit_lsn: commit_lsn.unwrap_or_default(), index: self.transaction.index };
        let change = match self.mapper.read(bytes, position) {
            Ok(change) => change,
            // It is a row, so it may be an event: owed, and never passed over.
            Err(error) if bytes.first() == Some(&b'I') => {
                let detail = format!("its row cannot be read: {error}");
                let draft = Box::default();
                Change::Refused(Refused { reason: Reason::BadValue, detail, aggregate: None, draft })
            }
            Err(error) => return Err(ProtocolError::Malformed(error.to_string())),
        };
        if change.is_row() {
            commit_lsn.ok_or(ProtocolError::Outside("a row change"))?;
            self.transaction.index += 1;
        }
        match change {
            Change::Event(Mapped { message, aggregate, dropped_headers }) => {
                self.counters.headers_dropped += dropped_headers.len() as u64;
                for name in dropped_headers {
                    self.tell_once(&name, Notice::HeaderDropped { name: name.to_string() });
                }
                let ticket = self.ledger.issue()?;
                let pending = Pending::event(message, ticket, self.transaction.committed_us);
                self.admit(Some(aggregate), pending);
            }
            Change::Refused(Refused { reason, detail, aggregate, draft }) => {
                let (ticket, poison) = (self.ledger.issue()?, Poison { reason, detail });
                let committed_us = self.transaction.committed_us;
                self.admit(aggregate, Pending::refused(position, draft, poison, ticket, committed_us));
            }
            Change::Command(command) => self.command(command)?,
            Change::BadCommand(why) => {
                self.ignored(Ignored::Command);
                self.tell(Notice::BadCommand { position, why });
            }
            Change::Ignored(ignored) => {
                if let Ignored::Unknown(letter) = ignored {
                    self.tell_once(&format!("letter {letter}"), Notice::UnknownMessage { letter });
                }
                self.ignored(ignored);
            }
            Change::Description => {}
        }
        Ok(())
    }

    fn admit(&mut self, aggregate: Option<AggregateKey>, mut pending: Pending) {
        self.events += 1;
        self.bytes += pending.bytes;
        if self.parked.has_row(pending.position) {
            self.counters.stored_before += 1;
            self.release_room(pending.bytes);
            self.settle_debt(pending.debt, pending.position, pending.bytes);
        } else if self.parked.parks(aggregate.as_ref(), pending.position) {
            let poison = self.own_poison(&mut pending);
            let key = aggregate.as_ref().map(ParkedKey::of);
            let condemned = Condemned { pending, aggregate, key, scope: Scope::Key, poison };
            self.works.push(Item::Row(Box::new(condemned)));
        } else {
            self.aggregates.push(aggregate, pending);
        }
    }

    /// A request owes the slot like an event, so that it is followed even if the relay ends before.
    fn command(&mut self, command: Command) -> Result<(), ProtocolError> {
        let Command { slot, verb, request } = command;
        if slot != self.settings.slot {
            self.ignored(Ignored::Command);
            return Ok(());
        }
        let ticket = self.ledger.issue()?;
        let bytes = size_of::<Item>()
            + request.aggregates.len() * size_of::<ParkedKey>()
            + request.positions.len() * size_of::<Position>();
        self.events += 1;
        self.bytes += bytes;
        let work = match verb {
            Verb::Retry => Work::Release(request),
            Verb::Discard => Work::Discard(request),
        };
        self.works.push(Item::Request(work, ticket, bytes));
        Ok(())
    }
}
