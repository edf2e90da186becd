//! Ring `real`: what the broker says about each message is what the answer says, and nothing better.

mod rig;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lapin::options::BasicGetOptions;
use lapin::types::AMQPValue;
use postrider_rabbitmq::{Event, Publisher};
use postrider_relay::{HeaderValue, Verdict, WindowEnd, WindowId};
use rig::{Desk, answer, message, next, ready, settings, text, window};
use testenv::Scope;

const RETURNED: Verdict = Verdict::Returned { code: 312 };

/// Publishes `windows` of `size` over all lanes; message `number` goes to `route(number)`. Returns the verdict of each.
async fn publish_all(
    publisher: &mut Publisher,
    exchange: &str,
    windows: u64,
    size: u32,
    route: impl Fn(u32) -> String,
) -> Result<Vec<Verdict>> {
    let first = |id: u64| u32::try_from(id).expect("few windows") * size;
    let make = |id: u64| {
        let numbers = first(id)..first(id + 1);
        window(id, numbers.map(|number| message(number, exchange, &route(number))))
    };
    let mut verdicts = HashMap::new();
    let mut handed = 0;
    while verdicts.len() < usize::try_from(windows)? {
        while handed < windows && handed < verdicts.len() as u64 + 8 {
            publisher.publish(make(handed));
            handed += 1;
        }
        match next(publisher).await? {
            // A slow machine may stall a window: its end follows.
            Event::Answer(answer) if answer.end == WindowEnd::Stalled => {}
            Event::Answer(answer) => {
                assert_eq!(answer.end, WindowEnd::Complete);
                verdicts.insert(answer.window, answer.verdicts);
            }
            Event::State(state) => panic!("the connection is {state:?}"),
        }
    }
    Ok((0..windows).flat_map(|id| verdicts.remove(&WindowId(id)).expect("it was answered")).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returns_and_confirms_reach_their_own_messages() -> Result<()> {
    let scope = Scope::shared("returns").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    for (kind, queue) in [("quorum", scope.named("quorum")), ("classic", scope.named("classic"))] {
        desk.queue(scope.name(), &queue, &[("x-queue-type", text(kind))]).await?;
        let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
        ready(&mut publisher).await?;
        // Bursts, single ones and whole windows without a queue.
        let lost = |number: u32| number % 7 == 3 || number % 1000 < 40 || number / 128 == 5;
        let route =
            |number| if lost(number) { format!("nobody.{number}") } else { format!("{queue}.{number}") };
        let verdicts = publish_all(&mut publisher, scope.name(), 40, 128, route).await?;
        for (number, verdict) in (0..).zip(&verdicts) {
            let expected = if lost(number) { RETURNED } else { Verdict::Confirmed };
            assert_eq!(*verdict, expected, "message {number} to a {kind} queue");
        }
        let confirmed = verdicts.iter().filter(|verdict| **verdict == Verdict::Confirmed).count();
        assert_eq!(
            desk.take_all(&queue).await?.len(),
            confirmed,
            "every confirmed message is in the queue once"
        );
        publisher.close(rig::LIMIT).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_window_keeps_its_order() -> Result<()> {
    let scope = Scope::shared("order").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    let queue = scope.named("queue");
    desk.queue(scope.name(), &queue, &[]).await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    ready(&mut publisher).await?;
    // Bodies larger than lapin is given at once, and than a frame.
    let large = |number| {
        let mut message = message(number, scope.name(), &format!("{queue}.x"));
        message.body = vec![b'x'; 1000 * (number as usize % 300)].into();
        message
    };
    publisher.publish(window(1, (0..300).map(large)));
    let end = loop {
        let answer = answer(&mut publisher).await?;
        if answer.end != WindowEnd::Stalled {
            break answer;
        }
    };
    assert_eq!(end.end, WindowEnd::Complete);
    assert!(end.verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed));
    let expected: Vec<_> = (0..300).map(|number: u32| number.to_string()).collect();
    assert_eq!(desk.take_all(&queue).await?, expected);
    Ok(())
}

#[tokio::test]
async fn a_full_queue_nacks() -> Result<()> {
    let scope = Scope::shared("nack").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    let queue = scope.named("queue");
    let full = [("x-max-length", AMQPValue::LongInt(5)), ("x-overflow", text("reject-publish"))];
    desk.queue(scope.name(), &queue, &full).await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    ready(&mut publisher).await?;
    let route = |number| {
        if number % 10 == 9 { "nobody".to_owned() } else { format!("{queue}.x") }
    };
    let verdicts = publish_all(&mut publisher, scope.name(), 4, 100, route).await?;
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    assert_eq!(count(RETURNED), 40, "a return is told from a nack");
    let held = desk.take_all(&queue).await?.len();
    assert_eq!(count(Verdict::Confirmed), held);
    assert_eq!(count(Verdict::Nacked), 360 - held);
    assert!(count(Verdict::Nacked) > 300);
    Ok(())
}

/// Hands a window with one message to each of two exchanges, and expects the missing one to close only its channel, and
/// the full queue of the other to refuse.
async fn one_of_each(publisher: &mut Publisher, id: u64, exchanges: &[&str], key: &str) -> Result<()> {
    for (id, exchange) in (id..).zip(exchanges) {
        publisher.publish(window(id, [message(u32::try_from(id)?, exchange, key)]));
    }
    for _ in exchanges {
        let answer = answer(publisher).await?;
        match usize::try_from(answer.window.0 - id)? {
            0 => assert_eq!((answer.end, answer.verdicts), (WindowEnd::Complete, vec![Verdict::Nacked])),
            _ => {
                assert!(matches!(answer.end, WindowEnd::ChannelClosed { code: 404, .. }), "{:?}", answer.end);
            }
        }
    }
    Ok(())
}

/// Lanes that are refused everything get fresh channels: where the broker allows few, in the places of closed ones, and
/// not in those that it has closed itself.
#[tokio::test]
async fn few_channels_are_enough() -> Result<()> {
    let scope = Scope::shared("few").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    let queue = scope.named("queue");
    let full = [("x-max-length", AMQPValue::LongInt(0)), ("x-overflow", text("reject-publish"))];
    desk.queue(scope.name(), &queue, &full).await?;
    let (gone, key) = (scope.named("gone"), format!("{queue}.x"));
    for (channels, closed) in [(2, 0), (5, 2)] {
        let url = format!("{}?channel_max={channels}", scope.amqp_url());
        let mut settings = settings(&url, scope.name())?;
        settings.lanes = 2;
        let mut publisher = Publisher::start(settings);
        ready(&mut publisher).await?;
        for round in 0..closed {
            one_of_each(&mut publisher, 2 * round, &[scope.name(), &gone], &key).await?;
        }
        // Long enough for more fresh channels than there are numbers.
        let until = Instant::now() + Duration::from_millis(600 * channels);
        let mut id = 1000;
        while Instant::now() < until {
            one_of_each(&mut publisher, id, &[scope.name()], &key).await?;
            id += 1;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_closed_channel_confirms_only_what_was_confirmed() -> Result<()> {
    let scope = Scope::shared("closed").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    let queue = scope.named("queue");
    desk.queue(scope.name(), &queue, &[]).await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    ready(&mut publisher).await?;
    let gone = scope.named("gone");
    // Each round breaks one lane while another carries on; the broken lane takes the next round's windows.
    for round in 0..20u32 {
        let make = |id: u64, culprit: Option<u32>| {
            let base = u32::try_from(id).expect("few windows") * 128;
            let one = |number: u32| {
                let exchange = if culprit == Some(number) { &gone } else { scope.name() };
                message(base + number, exchange, &format!("{queue}.x"))
            };
            window(id, (0..128).map(one))
        };
        let (bad, good) = (u64::from(2 * round), u64::from(2 * round + 1));
        publisher.publish(make(bad, Some(round * 6)));
        publisher.publish(make(good, None));
        let mut ends = HashMap::new();
        while ends.len() < 2 {
            let answer = answer(&mut publisher).await?;
            if answer.end != WindowEnd::Stalled {
                ends.insert(answer.window, answer);
            }
        }
        let bad = &ends[&WindowId(bad)];
        let WindowEnd::ChannelClosed { code: 404, text } = &bad.end else { panic!("it is {:?}", bad.end) };
        assert!(text.contains(&gone), "{text}");
        let culprit = usize::try_from(round * 6)?;
        assert!(bad.verdicts[culprit..].iter().all(|verdict| *verdict == Verdict::Unanswered));
        let good = &ends[&WindowId(good)];
        assert_eq!(good.end, WindowEnd::Complete, "the other lane's window lives");
        let stored = desk.take_all(&queue).await?;
        let id = |window: u64, at: usize| (window * 128 + at as u64).to_string();
        for (at, verdict) in bad.verdicts.iter().enumerate() {
            let stored = stored.contains(&id(bad.window.0, at));
            assert!(stored || *verdict == Verdict::Unanswered, "message {at} is confirmed and not stored");
        }
        assert!((0..128).all(|at| stored.contains(&id(good.window.0, at))));
    }
    // Alone in its window, the culprit names itself.
    publisher.publish(window(1000, [message(1, &gone, "x")]));
    let alone = answer(&mut publisher).await?;
    assert_eq!(alone.verdicts, [Verdict::Unanswered]);
    assert!(matches!(alone.end, WindowEnd::ChannelClosed { code: 404, .. }));
    Ok(())
}

#[tokio::test]
async fn a_message_that_amqp_cannot_carry_stops_only_its_window() -> Result<()> {
    let scope = Scope::shared("too_long").await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    ready(&mut publisher).await?;
    publisher.publish(window(1, [message(1, scope.name(), "x"), message(2, scope.name(), &"k".repeat(256))]));
    let refused = answer(&mut publisher).await?;
    assert_eq!(refused.verdicts, [Verdict::Unanswered; 2]);
    let WindowEnd::ChannelClosed { text, .. } = refused.end else { panic!("it is {:?}", refused.end) };
    assert!(text.contains("routing key"), "{text}");
    publisher.publish(window(2, [message(1, scope.name(), "x")]));
    assert_eq!(answer(&mut publisher).await?.verdicts, [RETURNED]);
    Ok(())
}

#[tokio::test]
async fn properties_and_headers_arrive_with_their_types() -> Result<()> {
    let scope = Scope::shared("properties").await?;
    let desk = Desk::open(&scope.amqp_url()).await?;
    desk.exchange(scope.name()).await?;
    let queue = scope.named("queue");
    desk.queue(scope.name(), &queue, &[]).await?;
    let mut publisher = Publisher::start(settings(&scope.amqp_url(), scope.name())?);
    ready(&mut publisher).await?;
    let mut sent = message(8, scope.name(), &format!("{queue}.placed"));
    sent.correlation_id = Some("c-1".into());
    sent.headers = vec![
        ("text".into(), HeaderValue::Text("t".into())),
        ("bool".into(), HeaderValue::Bool(true)),
        ("int".into(), HeaderValue::Int(-1)),
        ("long".into(), HeaderValue::Long(i64::MIN)),
    ];
    publisher.publish(window(1, [sent]));
    assert_eq!(answer(&mut publisher).await?.verdicts, [Verdict::Confirmed]);
    let got = desk.channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await?;
    let got = got.context("the message is there")?;
    assert_eq!(got.data, br#"{"number":8}"#);
    let properties = &got.properties;
    let short = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    assert_eq!(short(properties.message_id()).as_deref(), Some("8"));
    assert_eq!(short(properties.kind()).as_deref(), Some("placed"));
    assert_eq!(short(properties.correlation_id()).as_deref(), Some("c-1"));
    assert_eq!(short(properties.app_id()).as_deref(), Some("postrider"));
    assert_eq!(short(properties.content_type()).as_deref(), Some("application/json"));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    assert_eq!(*properties.delivery_mode(), Some(2));
    let headers = properties.headers().as_ref().context("there are headers")?.inner();
    let expected = [
        ("bool", AMQPValue::Boolean(true)),
        ("int", AMQPValue::LongInt(-1)),
        ("long", AMQPValue::LongLongInt(i64::MIN)),
        ("postrider_position", text("1/1/1")),
        ("text", text("t")),
    ];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}
