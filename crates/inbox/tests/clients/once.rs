//! What is delivered twice counts once; what must not count is parked.

use anyhow::Result;
use testenv::consumer::{Delivery, Value};

use crate::station::{LIMIT, Language, Station};

/// The inbox's rows as one text.
const ROWS: &str = "select string_agg(i::text, '') from postrider.inbox i where message_id = 'E-42'";

pub(crate) async fn redelivered(language: Language) -> Result<()> {
    let station = Station::new(language, "redelivered").await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    station.wait_counter(7, &worker).await?;
    station.send("E-42", "one").await?;
    worker.wait_log("E-42: duplicate", LIMIT).await?;
    assert_eq!(station.counter().await?, 7);
    station.all_acknowledged(&worker).await
}

pub(crate) async fn other_content(language: Language) -> Result<()> {
    let station = Station::new(language, "mismatch").await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    station.wait_counter(7, &worker).await?;
    let before: String = station.sql.query_one(ROWS, &[]).await?.get(0);
    station.send("E-42", "two").await?;
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), parked.body.as_slice()), ("E-42", &b"two"[..]));
    assert_eq!(reason(&parked), "mismatch");
    assert_eq!(parked.properties.message_type.as_deref(), Some("printed"), "its own properties stay");
    assert_eq!(parked.properties.expiration, None, "but the one by which the broker would drop it");
    assert_eq!(parked.properties.delivery_mode, Some(2));
    assert_eq!(parked.text("inbox_parked_consumer"), Some("report-worker"));
    assert_eq!(parked.text("inbox_parked_queue"), Some(station.queue.name()));
    assert_eq!(parked.text("inbox_parked_exchange"), Some(""));
    assert_eq!(parked.text("inbox_parked_routing_key"), Some(station.queue.name()));
    assert!(matches!(parked.headers.get("inbox_parked_first_failure"), Some(Value::Timestamp(1..))));
    assert_eq!(station.sql.query_one(ROWS, &[]).await?.get::<_, String>(0), before);
    assert_eq!(station.counter().await?, 7);
    station.all_acknowledged(&worker).await
}

pub(crate) async fn no_room(language: Language) -> Result<()> {
    let station = Station::without_parking(language, "no room").await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    station.send("E-42", "two").await?;
    worker.wait_log("the session is lost", LIMIT).await?;
    worker.kill().await?;
    assert_eq!(station.queue.left().await?, 1, "it was not acknowledged");
    let parking = station.open_parking().await?;
    let worker = station.run().await?;
    assert_eq!(parking.wait_take(LIMIT).await?.body, b"two");
    station.all_acknowledged(&worker).await?;
    assert_eq!((station.counter().await?, parking.depth().await?), (8, 0));
    Ok(())
}

pub(crate) async fn unusable_id(language: Language) -> Result<()> {
    let station = Station::new(language, "unusable id").await?;
    let worker = station.run().await?;
    // No text of Postgres holds a zero byte; and no second consumer is in two phases with this one's message.
    let begin = "select postrider.inbox_begin('report-worker', 'E-41')";
    station.sql.batch_execute(begin).await?;
    for id in ["", "E\0", "E-41"] {
        station.send(id, "one").await?;
        let parked = station.parked().await?;
        assert_eq!((parked.message_id(), reason(&parked)), (id, "poison"));
    }
    assert_eq!(station.counter().await?, 6);
    station.all_acknowledged(&worker).await
}

pub(crate) fn reason(parked: &Delivery) -> &str {
    parked.text("inbox_parked_reason").unwrap_or_default()
}
