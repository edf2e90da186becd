//! Ring `real`: what an operator is told of a parked message that cannot be read, or that the broker does
//! not take back.

mod rig;

use anyhow::{Context as _, Result, bail};
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use postrider_rabbitmq::{ParkedMessage, ParkingError, ParkingQueue, Way};
use rig::{Desk, settings};
use testenv::Scope;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Makes a queue, over a connection of this user's, and puts these messages into it.
async fn park(url: &str, queue: &str, parcels: impl IntoIterator<Item = BasicProperties>) -> Result<()> {
    let desk = Desk::open(url).await?;
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    desk.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    desk.channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await?;
    for properties in parcels {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = desk.channel.basic_publish("".into(), queue.into(), options, b"body", properties).await?;
        assert_eq!(sent.await?, lapin::Confirmation::Ack(None));
    }
    desk.connection.close(200, ShortString::default()).await?;
    Ok(())
}

fn named(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into())
}

/// What stands where there is to be no UTF-8: nothing else that a client sends has this byte.
const SPOILT: u8 = 0x7F;

/// A way to the broker on which texts are spoilt: no client of ours sends what is not UTF-8.
async fn spoiler(port: u16, tasks: &mut JoinSet<std::io::Result<()>>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.port();
    tasks.spawn(async move {
        let (mut from_client, mut to_client) = listener.accept().await?.0.into_split();
        let (mut from_broker, mut to_broker) = TcpStream::connect(("127.0.0.1", port)).await?.into_split();
        let back = tokio::io::copy(&mut from_broker, &mut to_client);
        let forth = async {
            let mut bytes = [0; 4096];
            loop {
                let read = from_client.read(&mut bytes).await?;
                if read == 0 {
                    return to_broker.shutdown().await;
                }
                let spoilt = bytes[..read].iter().map(|byte| if *byte == SPOILT { 0xFF } else { *byte });
                to_broker.write_all(&spoilt.collect::<Vec<_>>()).await?;
            }
        };
        tokio::try_join!(back, forth)?;
        Ok(())
    });
    Ok(own)
}

/// The first error of a look at the queue.
async fn look(url: &str, queue: &str) -> Result<ParkingError> {
    let mut parking = match ParkingQueue::open(&settings(url, "")?, queue, 10).await {
        Ok(parking) => parking,
        Err(error) => return Ok(error),
    };
    loop {
        match parking.next().await {
            Ok(Some(_)) => {}
            Ok(None) => bail!("the message was read"),
            Err(error) => return Ok(error),
        }
    }
}

#[tokio::test]
async fn a_message_that_is_not_utf_8_is_said_to_be_unchanged() -> Result<()> {
    let scope = Scope::shared("parked bytes").await?;
    let mut tasks = JoinSet::new();
    let port = spoiler(scope.addresses().rabbitmq_port, &mut tasks).await?;
    let through =
        scope.amqp_url().replace(&format!(":{}/", scope.addresses().rabbitmq_port), &format!(":{port}/"));
    park(&through, scope.name(), [named("E-1").with_content_type("\u{7F}".into())]).await?;
    // It may come with the answer that opens the queue, or behind it.
    for _ in 0..10 {
        let error = look(&scope.amqp_url(), scope.name()).await?.to_string();
        let hint = "the likely cause is a message of the queue with a property that is not UTF-8, which this client \
                    cannot read: it was not changed";
        assert!(error.contains(hint), "{error}");
    }
    let desk = Desk::open(&scope.amqp_url()).await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let left = desk.channel.queue_declare(scope.name().into(), passive, FieldTable::default()).await?;
    assert_eq!(left.message_count(), 1);
    Ok(())
}

#[tokio::test]
async fn a_message_of_another_user_names_the_cure() -> Result<()> {
    let scope = Scope::shared("parked user").await?;
    let user = scope.name();
    scope.ctl().add_user(user, "secret").await?;
    scope.ctl().set_permissions("/", user, [".*", ".*", ".*"]).await?;
    let theirs = named("E-1").with_user_id(user.into());
    park(&scope.amqp_url_for(user, "secret"), user, [theirs, named("E-2")]).await?;

    let home = scope.named("home");
    park(&scope.amqp_url(), &home, []).await?;
    let mut parking = ParkingQueue::open(&settings(&scope.amqp_url(), "")?, user, 10).await?;
    let way = Way::Queue(home.clone());
    let first = parking.next().await?.context("the first message")?;
    let refused = parking.send_back(&first, &way).await.expect_err("it is another user's");
    let ParkingError::Refused { why, .. } = &refused else { bail!("{refused}") };
    assert!(why.contains("406") && why.contains("user_id"), "{why}");
    let cure = format!("log in as {user:?}, or give the user of this login the tag impersonator");
    assert!(why.contains(&cure), "{why}");
    // The others go; and so does this one when its own user sends it.
    let second = parking.next().await?.context("the second message")?;
    parking.send_back(&second, &way).await?;
    parking.close().await?;
    let mut parking =
        ParkingQueue::open(&settings(&scope.amqp_url_for(user, "secret"), "")?, user, 10).await?;
    let first = parking.next().await?.context("the first message, still there")?;
    assert_eq!(first.message_id(), Some("E-1"));
    parking.send_back(&first, &way).await?;
    assert_eq!(parking.next().await?.as_ref().and_then(ParkedMessage::message_id), None);
    parking.close().await?;
    Ok(())
}
