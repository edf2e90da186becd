//! What is owed for each transaction, and the one place that says what may be acknowledged.
//!
//! Invariant: a [`Watermark`] is the end of the longest fully paid prefix of transactions or, with
//! nothing open or owed, a keepalive's position. A [`Ticket`] is moved and never copied; one that
//! gets lost is a debt that nobody pays, so the watermark stops: the ledger fails closed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lsn::Lsn;

/// A position that may be acknowledged to Postgres. Only the ledger makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(Lsn);

impl Watermark {
    /// The position.
    pub fn lsn(self) -> Lsn {
        self.0
    }
}

/// The debt of one event. It never leaves the core.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    transaction: Serial,
}

/// A transaction's number in the order of arrival, unique for the life of the ledger.
type Serial = u64;

/// The frame does not fit into the stream's order; the session cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A transaction began inside another.
    #[error("follow the stream: begin at {0} inside an open transaction")]
    Nested(Lsn),
    /// A change or commit outside of a transaction.
    #[error("follow the stream: {0} outside of a transaction")]
    Outside(&'static str),
    /// The commit names another position than its begin.
    #[error("follow the stream: a transaction begun for {begun} is committed at {committed}")]
    Mismatch {
        /// The position in the begin message.
        begun: Lsn,
        /// The position in the commit message.
        committed: Lsn,
    },
    /// A message that cannot be decoded and is no row change.
    #[error("follow the stream: {0}")]
    Malformed(String),
}

#[derive(Debug)]
struct Open {
    serial: Serial,
    commit_lsn: Lsn,
    debt: Debt,
}

#[derive(Debug)]
struct Debt {
    owed: u64,
    /// Events paid here that the watermark has not passed.
    paid: u64,
    since: Duration,
}

/// A committed transaction that still owes, with all fully paid ones between it and the next such.
#[derive(Debug)]
struct Unpaid {
    debt: Debt,
    end_lsn: Lsn,
}

/// The debts of one session, in the order of the stream.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: Option<Open>,
    unpaid: BTreeMap<Serial, Unpaid>,
    watermark: Option<Watermark>,
    next: Serial,
    /// Events paid in this session, and how many of them lie below the watermark.
    paid: u64,
    passed: u64,
}

impl Ledger {
    /// Forgets every debt: a new session streams them again. Serials go on, so that an old ticket
    /// can never pay for a new transaction.
    pub(crate) fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }

    pub(crate) fn begin(&mut self, now: Duration, commit_lsn: Lsn) -> Result<(), ProtocolError> {
        if self.open.is_some() {
            return Err(ProtocolError::Nested(commit_lsn));
        }
        let debt = Debt { owed: 0, paid: 0, since: now };
        self.open = Some(Open { serial: self.next, commit_lsn, debt });
        self.next += 1;
        Ok(())
    }

    /// A debt in the open transaction.
    pub(crate) fn issue(&mut self) -> Result<Ticket, ProtocolError> {
        let open = self.open.as_mut().ok_or(ProtocolError::Outside("a row change"))?;
        open.debt.owed += 1;
        Ok(Ticket { transaction: open.serial })
    }

    pub(crate) fn commit(&mut self, commit_lsn: Lsn, end_lsn: Lsn) -> Result<(), ProtocolError> {
        let open = self.open.take().ok_or(ProtocolError::Outside("a commit"))?;
        if open.commit_lsn != commit_lsn {
            return Err(ProtocolError::Mismatch { begun: open.commit_lsn, committed: commit_lsn });
        }
        self.unpaid.insert(open.serial, Unpaid { debt: open.debt, end_lsn });
        self.settle(open.serial);
        Ok(())
    }

    #[expect(clippy::needless_pass_by_value, reason = "a ticket is used up")]
    pub(crate) fn pay(&mut self, ticket: Ticket) {
        let Ticket { transaction } = ticket;
        self.paid += 1;
        if let Some(open) = self.open.as_mut().filter(|open| open.serial == transaction) {
            open.debt.pay();
            return;
        }
        let unpaid = self.unpaid.get_mut(&transaction);
        unpaid.expect("a ticket of this session belongs to an unpaid transaction").debt.pay();
        self.settle(transaction);
    }

    /// The server has sent everything below `wal_end`: with nothing open or owed, all of it is paid.
    pub(crate) fn keepalive(&mut self, wal_end: Lsn) {
        if self.open.is_none() && self.unpaid.is_empty() {
            self.raise(wal_end);
        }
    }

    pub(crate) fn watermark(&self) -> Option<Watermark> {
        self.watermark
    }

    /// The commit position of the open transaction.
    pub(crate) fn open(&self) -> Option<Lsn> {
        self.open.as_ref().map(|open| open.commit_lsn)
    }

    /// Whether `ticket` belongs to a transaction whose end has not been read.
    pub(crate) fn is_open(&self, ticket: &Ticket) -> bool {
        self.open.as_ref().is_some_and(|open| open.serial == ticket.transaction)
    }

    pub(crate) fn owes(&self) -> bool {
        !self.unpaid.is_empty() || self.open.as_ref().is_some_and(|open| open.debt.owed > 0)
    }

    /// When the oldest transaction that still owes began to arrive.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let committed = self.unpaid.first_key_value().map(|(_, unpaid)| unpaid.debt.since);
        let open = self.open.as_ref().filter(|open| open.debt.owed > 0).map(|open| open.debt.since);
        committed.or(open)
    }

    /// Events paid in this session, and how many of them lie at or below the watermark.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.paid, self.passed)
    }

    /// Takes a fully paid transaction out. Behind an unpaid one it is merged with it, so that the
    /// ledger's size follows what is owed and not how long one event waits.
    fn settle(&mut self, serial: Serial) {
        if self.unpaid.get(&serial).is_none_or(|unpaid| unpaid.debt.owed > 0) {
            return;
        }
        let Some(settled) = self.unpaid.remove(&serial) else { return };
        if let Some((_, elder)) = self.unpaid.range_mut(..serial).next_back() {
            elder.end_lsn = elder.end_lsn.max(settled.end_lsn);
            elder.debt.paid += settled.debt.paid;
        } else {
            self.passed += settled.debt.paid;
            self.raise(settled.end_lsn);
        }
    }

    fn raise(&mut self, lsn: Lsn) {
        self.watermark = self.watermark.max(Some(Watermark(lsn)));
    }
}

impl Debt {
    fn pay(&mut self) {
        self.owed = self.owed.checked_sub(1).expect("a ticket is paid once");
        self.paid += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive model: every transaction is kept for ever.
    #[derive(Default)]
    struct Model {
        transactions: Vec<(Option<Lsn>, usize)>,
        keepalive: Lsn,
    }

    impl Model {
        fn idle(&self) -> bool {
            self.transactions.iter().all(|(end, owed)| end.is_some() && *owed == 0)
        }

        fn watermark(&self) -> Lsn {
            let paid = self.transactions.iter().take_while(|(end, owed)| end.is_some() && *owed == 0);
            paid.filter_map(|(end, _)| *end).last().unwrap_or_default().max(self.keepalive)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin,
        Issue,
        Commit,
        Pay(prop::sample::Index),
        Lose(prop::sample::Index),
        Keepalive,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Begin),
            6 => Just(Step::Issue),
            4 => Just(Step::Commit),
            8 => any::<prop::sample::Index>().prop_map(Step::Pay),
            1 => any::<prop::sample::Index>().prop_map(Step::Lose),
            2 => Just(Step::Keepalive),
        ]
    }

    proptest! {
        #[test]
        fn the_ledger_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 0..200)) {
            let (mut ledger, mut model) = (Ledger::default(), Model::default());
            let (mut tickets, mut lsn) = (Vec::new(), 0);
            for step in steps {
                lsn += 10;
                let open = ledger.open();
                match step {
                    Step::Begin if open.is_none() => {
                        ledger.begin(Duration::ZERO, Lsn(lsn)).unwrap();
                        model.transactions.push((None, 0));
                    }
                    Step::Issue if open.is_some() => {
                        tickets.push((model.transactions.len() - 1, ledger.issue().unwrap()));
                        model.transactions.last_mut().unwrap().1 += 1;
                    }
                    Step::Commit => if let Some(commit) = open {
                        ledger.commit(commit, Lsn(lsn)).unwrap();
                        model.transactions.last_mut().unwrap().0 = Some(Lsn(lsn));
                    },
                    Step::Pay(pick) if !tickets.is_empty() => {
                        let (at, ticket) = tickets.swap_remove(pick.index(tickets.len()));
                        ledger.pay(ticket);
                        model.transactions[at].1 -= 1;
                    }
                    Step::Lose(pick) if !tickets.is_empty() => {
                        let _lost = tickets.swap_remove(pick.index(tickets.len()));
                    }
                    Step::Keepalive => {
                        ledger.keepalive(Lsn(lsn));
                        if model.idle() { model.keepalive = Lsn(lsn); }
                    }
                    _ => {}
                }
                prop_assert_eq!(ledger.watermark().map_or(Lsn(0), Watermark::lsn), model.watermark());
                let owing = model.transactions.iter().filter(|(_, owed)| *owed > 0).count();
                prop_assert!(ledger.unpaid.len() <= owing, "the ledger holds more than what is owed");
                prop_assert_eq!(ledger.owes(), owing > 0);
            }
        }
    }

    #[test]
    fn a_stream_out_of_order_is_refused() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.issue(), Err(ProtocolError::Outside("a row change")));
        assert_eq!(ledger.commit(Lsn(1), Lsn(2)), Err(ProtocolError::Outside("a commit")));
        ledger.begin(Duration::ZERO, Lsn(5)).unwrap();
        assert_eq!(ledger.begin(Duration::ZERO, Lsn(9)), Err(ProtocolError::Nested(Lsn(9))));
        let mismatch = ProtocolError::Mismatch { begun: Lsn(5), committed: Lsn(6) };
        assert_eq!(ledger.commit(Lsn(6), Lsn(7)), Err(mismatch));
    }
}
