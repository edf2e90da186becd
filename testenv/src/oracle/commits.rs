//! Where each transaction's commit record stands, read by Postgres itself from a slot beside the relay's.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

use super::truth::Event;

/// The commit record of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction, the lower 32 bits of its id.
    pub xid: u32,
    /// Where the commit record begins: the slot has passed the transaction once it stands behind this.
    pub commit_lsn: PgLsn,
    /// Where the commit record ends: what is acknowledged.
    pub end_lsn: PgLsn,
}

/// The commits of all transactions with rows of the publication, in order.
#[derive(Clone, Debug, Default)]
pub struct Commits {
    by_lsn: BTreeMap<PgLsn, Commit>,
}

impl Commits {
    /// Creates the slot that [`Self::read`] looks into; call it before the first event, after the publication.
    /// It holds back WAL until it is dropped.
    pub async fn watch(sql: &Client, slot: &str) -> Result<()> {
        sql.execute("select pg_create_logical_replication_slot($1::text, 'pgoutput')", &[&slot])
            .await
            .with_context(|| format!("create the oracle's slot {slot}"))?;
        Ok(())
    }

    /// Reads every commit since [`Self::watch`] (pgoutput's message `C`: PostgreSQL manual, "Logical Replication
    /// Message Formats").
    pub async fn read(sql: &Client, slot: &str, publication: &str) -> Result<Self> {
        let rows = sql
            .query(
                "select xid::text, data
                   from pg_logical_slot_peek_binary_changes($1::text, null, null,
                        'proto_version', '1', 'publication_names', $2::text)
                  where get_byte(data, 0) = ascii('C')",
                &[&slot, &publication],
            )
            .await
            .with_context(|| format!("read the oracle's slot {slot}"))?;
        rows.iter()
            .map(|row| commit(row.get::<_, &str>(0).parse().context("read a transaction id")?, row.get(1)))
            .collect()
    }

    /// The commit of the transaction that wrote `event`.
    pub fn of(&self, event: &Event) -> Option<Commit> {
        let xid = event.place?.xid;
        self.by_lsn.values().find(|commit| commit.xid == xid).copied()
    }

    /// The last commit before `lsn`.
    pub fn before(&self, lsn: PgLsn) -> Option<Commit> {
        self.by_lsn.range(..lsn).next_back().map(|(_, commit)| *commit)
    }

    /// The last commit of all.
    pub fn last(&self) -> Option<Commit> {
        self.by_lsn.values().next_back().copied()
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Commit> {
        self.by_lsn.values()
    }
}

impl FromIterator<Commit> for Commits {
    fn from_iter<I: IntoIterator<Item = Commit>>(commits: I) -> Self {
        Self { by_lsn: commits.into_iter().map(|commit| (commit.commit_lsn, commit)).collect() }
    }
}

fn commit(xid: u32, message: &[u8]) -> Result<Commit> {
    let lsn = |at: usize| message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    let (Some(commit_lsn), Some(end_lsn)) = (lsn(2), lsn(10)) else {
        bail!("read a commit message: only {} bytes", message.len());
    };
    let lsn = |bytes| PgLsn::from(u64::from_be_bytes(bytes));
    Ok(Commit { xid, commit_lsn: lsn(commit_lsn), end_lsn: lsn(end_lsn) })
}
