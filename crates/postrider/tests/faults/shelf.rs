//! What a row asks about the quarantine, and asks of it: by SQL, as any operator may.

use anyhow::{Context as _, Result, ensure};
use testenv::eventually;
use testenv::oracle::{Quarantine, State};

use crate::scene::{LIMIT, Scene};

/// A request for everything that is parked; the rows of scope `event` stand for themselves.
const RETRY: &str = "
    with parked as (
        select * from postrider.quarantine where slot = $1 and state = 'parked'
    )
    insert into postrider.command (verb, argument)
    select 'retry', jsonb_build_object(
        'slot', $1,
        'aggregates', (select coalesce(jsonb_agg(distinct encode(aggregate_key, 'hex')), '[]')
                         from parked where scope = 'key' and aggregate_key is not null),
        'positions', (select coalesce(jsonb_agg(commit_lsn || '/' || index), '[]')
                        from parked where scope = 'event' or aggregate_key is null))";

impl Scene {
    /// The quarantine as it is now.
    pub(crate) async fn quarantine(&self) -> Result<Quarantine> {
        Quarantine::read(&*self.rig.sql().await?, self.rig.name()).await
    }

    /// Waits until the quarantine is as wanted.
    pub(crate) async fn wait_quarantine(
        &self,
        what: &str,
        enough: impl Fn(&Quarantine) -> bool,
    ) -> Result<Quarantine> {
        let sql = self.rig.sql().await?;
        let mut last = Quarantine::default();
        let waited = eventually(what, LIMIT, async || {
            last = Quarantine::read(&sql, self.rig.name()).await?;
            Ok(enough(&last).then(|| last.clone()))
        });
        let waited = waited.await;
        waited.with_context(|| {
            let rows = last.rows();
            format!("{} rows, {} undelivered, the last {:?}", rows.len(), last.undelivered(), rows.last())
        })
    }

    /// Waits until this event is parked.
    pub(crate) async fn wait_parked(&self, message_id: &str) -> Result<Quarantine> {
        let parked = |found: &Quarantine| found.of(message_id).is_some_and(|row| row.state == State::Parked);
        self.wait_quarantine(&format!("{message_id} to be parked"), parked).await
    }

    /// Asks for everything that is parked to be sent again.
    pub(crate) async fn retry(&self) -> Result<()> {
        let sql = self.rig.sql().await?;
        sql.execute(RETRY, &[&self.rig.name()]).await.context("ask for a retry").map(drop)
    }

    /// Asks, and asks again for what has failed, until nothing is undelivered.
    pub(crate) async fn retry_all(&self) -> Result<()> {
        let mut asked = 0;
        let empty = eventually("the quarantine to be empty", LIMIT, async || {
            let found = self.quarantine().await?;
            if found.in_state(State::Parked).next().is_some()
                && found.in_state(State::Released).next().is_none()
            {
                asked += 1;
                self.retry().await?;
            }
            Ok((found.undelivered() == 0).then_some(()))
        });
        empty.await.with_context(|| format!("asked {asked} times"))
    }

    /// Holds the rows of these events, in this order and nothing else, against what has to be there.
    pub(crate) async fn expect_parked(&self, expected: &[(&str, &str)]) -> Result<()> {
        let found = self.quarantine().await?;
        let rows = found.in_state(State::Parked);
        let rows: Vec<_> = rows.map(|row| (row.message_id.as_deref().unwrap_or("?"), &*row.reason)).collect();
        ensure!(rows == expected, "find {expected:?} parked: {rows:?}");
        ensure!(found.undelivered() == rows.len(), "find nothing released: {found:?}");
        Ok(())
    }
}
