//! Ring `real`: what an operator is told of a parked message that cannot be read, or that the broker does
//! not take back.

mod rig;

use std::io;

use anyhow::{Context as _, Result, bail};
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use postrider_rabbitmq::{ParkedMessage, ParkingError, ParkingQueue, Way};
use rig::{Desk, settings};
use testenv::{Direction, Scope};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
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

/// What stands where there is to be no UTF-8: nothing else that is sent has this byte.
const SPOILT: char = '\u{7F}';

/// A URL of the broker, for one connection, by a way on which texts are spoilt in one direction: no client of ours
/// sends what is not UTF-8.
async fn spoilt(scope: &Scope, direction: Direction, tasks: &mut JoinSet<io::Result<()>>) -> Result<String> {
    let port = scope.addresses().rabbitmq_port;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.port();
    tasks.spawn(async move {
        let (from_client, to_client) = listener.accept().await?.0.into_split();
        let (from_broker, to_broker) = TcpStream::connect(("127.0.0.1", port)).await?.into_split();
        let forth = pump(from_client, to_broker, direction == Direction::ToServer);
        tokio::try_join!(forth, pump(from_broker, to_client, direction == Direction::ToClient))?;
        Ok(())
    });
    Ok(scope.amqp_url().replace(&format!(":{port}/"), &format!(":{own}/")))
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, spoil: bool) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if spoil {
            for byte in bytes[..read].iter_mut().filter(|byte| char::from(**byte) == SPOILT) {
                *byte = 0xFF;
            }
        }
        to.write_all(&bytes[..read]).await?;
    }
}

const HINT: &str = "the likely cause is a message of the queue with a property that is not UTF-8, which this client \
                    cannot read: it was not changed";

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
    let url = spoilt(&scope, Direction::ToServer, &mut tasks).await?;
    let content_type = SPOILT.to_string().as_str().into();
    park(&url, scope.name(), [named("E-1").with_content_type(content_type)]).await?;
    let error = look(&scope.amqp_url(), scope.name()).await?.to_string();
    assert!(error.starts_with("keep the connection") && error.contains(HINT), "{error}");
    let desk = Desk::open(&scope.amqp_url()).await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let left = desk.channel.queue_declare(scope.name().into(), passive, FieldTable::default()).await?;
    assert_eq!(left.message_count(), 1);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_parsed_while_the_queue_is_opened_has_the_same_hint() -> Result<()> {
    let scope = Scope::shared("parked opening").await?;
    // The broker's first answer repeats the queue's name.
    let queue = scope.named(&SPOILT.to_string());
    park(&scope.amqp_url(), &queue, []).await?;
    let mut tasks = JoinSet::new();
    let url = spoilt(&scope, Direction::ToClient, &mut tasks).await?;
    let error = look(&url, &queue).await?;
    assert!(matches!(error, ParkingError::Queue { .. }) && error.to_string().contains(HINT), "{error}");
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
