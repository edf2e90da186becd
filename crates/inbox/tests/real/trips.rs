//! A claim is one round trip, also the first of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Result;
use postrider_inbox::{Inbox, Message, Verdict};
use testenv::{Direction, Link, Protocol, Sql};

use crate::place::Place;

#[tokio::test]
async fn a_claim_is_one_round_trip() -> Result<()> {
    let place = Place::new("trips", "").await?;
    let link = Link::start(place.scope.addresses().postgres_port, Protocol::Postgres)?;
    let mut sql = Sql::connect(&link.through(&place.scope.admin_url())).await?;
    // Every question of a client ends with a Sync or is a simple query. Nothing is cut: no frame is wanted.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let _armed = link.cut_inside_frame(Direction::ToServer, move |frame| {
        count.fetch_add(usize::from(matches!(frame.kind, b'S' | b'Q')), Relaxed);
        false
    });
    let inbox = Inbox::new("worker");
    let message = Message::new("E-42").content(b"body").sequence("order/1", 1);
    for expected in [Verdict::Process, Verdict::Duplicate] {
        let transaction = sql.transaction().await?;
        let before = asked.load(Relaxed);
        assert_eq!(inbox.claim(&transaction, message).await?, expected);
        assert_eq!(asked.load(Relaxed) - before, 1, "{expected:?}");
        transaction.commit().await?;
    }
    assert_eq!(asked.load(Relaxed), 6, "BEGIN, claim and COMMIT, twice");
    Ok(())
}
