//! The same with a relay: what an operator mends and asks is done.

use anyhow::{Context as _, Result};
use testenv::eventually;

use super::Ward;
use crate::run::{Run, expect};
use crate::stage::{LIMIT, MARKER};

impl Ward {
    /// An event of the aggregate order/42 for this exchange, alone in its transaction; returns its id.
    async fn write(&self, exchange: &str) -> Result<String> {
        self.stage
            .text(&format!(
                "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload, exchange)
                 values ('order', '42', 'placed', '{{\"note\": \"{MARKER}\"}}', '{exchange}') returning id::text"
            ))
            .await
    }

    async fn wait_parked(&self, events: i64) -> Result<()> {
        let parked = "select count(*) from postrider.quarantine where state = 'parked'";
        eventually(format!("{events} parked events"), LIMIT, async || {
            let count: i64 = self.stage.sql.query_one(parked, &[]).await?.get(0);
            Ok((count == events).then_some(()))
        })
        .await
    }

    async fn expect_message(&self, id: &str) -> Result<()> {
        let message = self.stage.next_message().await?;
        anyhow::ensure!(message.message_id() == id, "expect {id}: {message:?}");
        Ok(())
    }
}

#[tokio::test]
async fn a_relay_sends_what_was_mended_and_forgets_what_was_discarded() -> Result<()> {
    let ward = Ward::new("quarantine relay").await?;
    let (name, missing) = (ward.stage.name(), ward.stage.rig.scope.named("missing"));
    let mut relay = ward.stage.ready().await?;
    // Publishing to an exchange that is not there closes the channel: poison, and what follows waits behind it.
    let poison = ward.write(&missing).await?;
    let second = ward.write(name).await?;
    let third = ward.write(name).await?;
    ward.wait_parked(3).await.with_context(|| relay.log_text())?;
    ward.stage.expect_empty_queue().await?;

    // Not mended: it comes back.
    let (printed, said) = expect(&ward.program, "quarantine retry --aggregate order/42", 1).await?;
    assert!(printed.ends_with("\n3 parked again\n"), "{printed}");
    assert!(
        printed.contains("\tchannel_closed: ") && said.contains("3 events could not be"),
        "{printed}{said}"
    );
    let mend = format!("update postrider.quarantine set exchange = '{name}' where message_id = '{poison}'");
    ward.sql().await?.batch_execute(&mend).await?;
    let (printed, _) = expect(&ward.program, "quarantine retry --reason channel_closed", 0).await?;
    assert!(printed.starts_with("request 2: retry 1 event, and 2 events that wait behind them"), "{printed}");
    assert!(printed.ends_with("\n3 delivered\n"), "{printed}");
    for id in [&poison, &second, &third] {
        ward.expect_message(id).await?;
    }

    // Discarded, also while no relay runs; what waited behind it is sent for itself.
    let poison = ward.write(&missing).await?;
    let second = ward.write(name).await?;
    ward.wait_parked(2).await.with_context(|| relay.log_text())?;
    relay.expect_drain().await?;
    let (_, said) =
        expect(&ward.program, &format!("quarantine discard --id {poison} --yes --wait 1"), 1).await?;
    assert!(said.contains("it stands in the log"), "{said}");
    let mut relay = Run::start(&ward.stage.rig.program)?;
    ward.wait_parked(1).await.with_context(|| relay.log_text())?;
    let (printed, _) = expect(&ward.program, "quarantine retry --all", 0).await?;
    assert!(printed.ends_with("\n1 delivered\n"), "{printed}");
    ward.expect_message(&second).await?;
    // Live again.
    let fourth = ward.write(name).await?;
    ward.expect_message(&fourth).await?;
    let (printed, said) = expect(&ward.program, "quarantine list --json", 0).await?;
    assert_eq!(printed, "[]\n", "{said}");
    relay.expect_drain().await
}
