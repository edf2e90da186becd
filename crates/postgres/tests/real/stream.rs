//! The stream on real servers: frames, reports, takeover, and every way in which a session ends.

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_postgres::{Admin, Error, Reason, SlotStream};
use postrider_relay::Frame;
use testenv::{Link, Postgres, PostgresOptions, Protocol, Sql, eventually};

use crate::rig::{LIMIT, Rig, options, receive_commit, receives, start, stopped, watermark};

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_arrives_as_frames() -> Result<()> {
    let rig = Rig::ready("frames").await?;
    let (_admin, mut stream) = rig.run().await?;
    rig.execute(
        "begin;
         insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
           values ('t', '1', 'e', '{\"a\": 1.10}');
         select pg_logical_emit_message(true, 'x', 'y');
         insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('t', '2', 'e');
         commit",
    )
    .await?;
    let mut frames = Vec::new();
    let reading = async {
        loop {
            match stream.next().await? {
                Frame::Keepalive { .. } => {}
                frame @ Frame::Commit { .. } => return Ok::<_, Error>(frame),
                frame => frames.push(frame),
            }
        }
    };
    let commit = tokio::time::timeout(LIMIT, reading).await??;
    let [Frame::Begin { commit_lsn, committed_us }, rest @ ..] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    let letters: Vec<String> = rest
        .iter()
        .map(|frame| match frame {
            Frame::Change(bytes) => char::from(bytes[0]).to_string(),
            Frame::Message { transactional: true } => "message".to_owned(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(letters, ["R", "I", "message", "I"]);
    let now: i64 =
        rig.sql.query_one("select (extract(epoch from now()) * 1000000)::bigint", &[]).await?.get(0);
    assert!((now - committed_us).abs() < 60_000_000, "{committed_us} is not within a minute of {now}");
    match commit {
        Frame::Commit { commit_lsn: again, end_lsn } => assert!(again == *commit_lsn && end_lsn > again),
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_printed_the_same_whatever_the_role_prefers() -> Result<()> {
    let rig = Rig::ready("pinned").await?;
    rig.execute(
        "alter database pinned set DateStyle = 'SQL, DMY';
         alter database pinned set TimeZone = 'Asia/Tokyo';
         alter database pinned set bytea_output = 'escape'",
    )
    .await?;
    let (_admin, mut stream) = rig.run().await?;
    rig.execute(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, occurred_at)
         values ('t', '1', 'e', '2026-02-03 04:05:06.789+00')",
    )
    .await?;
    receives(&mut stream, "2026-02-03 04:05:06.789+00").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_moves_the_slot_and_the_drain_is_recorded() -> Result<()> {
    let rig = Rig::ready("reported").await?;
    let (admin, mut stream) = rig.run().await?;
    let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
    assert_eq!(seen.record.and_then(|record| record.watermark), None, "a running relay's position is open");
    rig.insert("one").await?;
    let one = receive_commit(&mut stream, "one").await?;
    stream.report(watermark(one));
    eventually("the slot to follow", LIMIT, async || {
        let slot = rig.inspect().await?.slot.context("find the slot")?;
        Ok((slot.confirmed_flush_lsn == Some(one)).then_some(()))
    })
    .await?;
    assert_eq!(stream.sent(), one);
    rig.insert("two").await?;
    let two = receive_commit(&mut stream, "two").await?;
    assert_eq!(stream.close(Some(watermark(two)), LIMIT).await, Some(two));
    let seen = rig.inspect().await?;
    assert_eq!(seen.record.and_then(|record| record.watermark), Some(two));
    assert_eq!(seen.slot.and_then(|slot| slot.active_pid), None);

    // What was confirmed does not come again, what was not does.
    let (_admin, mut stream) = rig.run().await?;
    rig.insert("three").await?;
    let mut texts = Vec::new();
    loop {
        match tokio::time::timeout(LIMIT, stream.next()).await?? {
            Frame::Change(bytes) if bytes[0] == b'I' => {
                texts.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            Frame::Commit { .. } => break,
            _ => {}
        }
    }
    assert!(texts.len() == 1 && texts[0].contains("three"), "{texts:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_while_frames_pile_up_ends() -> Result<()> {
    let rig = Rig::ready("piled_up").await?;
    let (_admin, stream) = rig.run().await?;
    rig.execute(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
         select 't', i, 'e', to_json(repeat('x', 1000)) from generate_series(1, 20000) i",
    )
    .await?;
    let start = rig.inspect().await?.record.context("find the record")?.slot_lsn;
    assert_eq!(stream.close(None, LIMIT).await, Some(start));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_relay_stands_by_and_takes_over() -> Result<()> {
    let rig = Rig::ready("standing_by").await?;
    let (_admin, first) = rig.run().await?;
    let second = rig.admin().await?;
    let seen = second.check(&rig.subject, None).await?;
    assert_eq!(seen.slot.and_then(|slot| slot.active_pid), Some(first.walsender_pid()));
    match SlotStream::connect(&second, &rig.subject, Duration::from_secs(1)).await {
        Err(Error::Standby { pid }) => assert_eq!(pid, Some(first.walsender_pid())),
        other => panic!("{:?}", other.map(|stream| stream.walsender_pid())),
    }
    // As killed: no last word.
    drop(first);
    let mut taken = eventually("the slot to be taken over", LIMIT, async || {
        match SlotStream::connect(&second, &rig.subject, Duration::from_secs(1)).await {
            Ok(stream) => Ok(Some(stream)),
            Err(Error::Standby { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    })
    .await?;
    rig.insert("taken over").await?;
    receives(&mut taken, "taken over").await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_end_are_outages_and_the_next_one_runs() -> Result<()> {
    let mut server = start(options()).await?;
    let rig = Rig::ready_on(&server, "ended").await?;

    let (admin, mut stream) = rig.run().await?;
    assert_eq!(server.terminate_walsenders().await?, 1);
    outage(&mut stream).await?;
    drop(stream);
    eventually("the check to see it", LIMIT, async || {
        Ok(matches!(admin.check(&rig.subject, Some(1)).await, Err(Error::Outage(_))).then_some(()))
    })
    .await?;

    for mode in [testenv::Stop::Fast, testenv::Stop::Immediate] {
        let (_admin, mut stream) = rig.run().await?;
        insert_anew(&server, "before").await?;
        let end = receive_commit(&mut stream, "before").await?;
        // A fast stop waits until everything sent is acknowledged.
        stream.report(watermark(end));
        let (stopped, ended) = tokio::join!(server.restart(mode), outage(&mut stream));
        stopped?;
        ended?;
    }

    server.stop(testenv::Stop::Fast).await?;
    match rig.admin().await {
        Err(Error::Outage(why)) => assert!(why.contains("refused"), "{why}"),
        other => panic!("{:?}", other.map(|admin| admin.endpoint())),
    }
    server.start_again().await?;
    let (_admin, mut stream) = rig.run().await?;
    insert_anew(&server, "again").await?;
    receives(&mut stream, "again").await
}

/// By a new connection: the old one did not survive the server.
async fn insert_anew(server: &Postgres, aggregate: &str) -> Result<()> {
    let sql = Sql::connect(&crate::rig::socket_url(server, "postgres", "ended")).await?;
    let insert =
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type) values ('t', $1, 'e')";
    sql.execute(insert, &[&aggregate]).await.context("insert an event").map(drop)
}

/// Reads on until the session ends, which must be an outage.
async fn outage(stream: &mut SlotStream) -> Result<()> {
    let ended = async {
        loop {
            if let Err(e) = stream.next().await {
                return e;
            }
        }
    };
    match tokio::time::timeout(LIMIT, ended).await.context("the session to end")? {
        Error::Outage(_) => Ok(()),
        e => anyhow::bail!("expected an outage: {e}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_lost_while_streaming_is_a_stop() -> Result<()> {
    let server = start(PostgresOptions { max_slot_wal_keep_size_mb: Some(1), ..options() }).await?;
    let rig = Rig::ready_on(&server, "lost_while_streaming").await?;
    let (_admin, mut stream) = rig.run().await?;
    for _ in 0..4 {
        rig.execute("create table if not exists filler (id int); insert into filler values (1)").await?;
        rig.execute("select pg_switch_wal()").await?;
    }
    rig.execute("checkpoint").await?;
    let ended = async {
        loop {
            if let Err(e) = stream.next().await {
                return e;
            }
        }
    };
    let error = tokio::time::timeout(LIMIT, ended).await.context("the session to end")?;
    let stop = stopped(Err::<(), _>(error))?;
    assert_eq!(stop.reason, Reason::SlotLost, "{stop}");
    drop(stream);
    rig.mend(stop).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_link_is_an_outage() -> Result<()> {
    let server = crate::rig::shared().await?;
    let mut rig = Rig::ready("cut").await?;
    let link = Link::start(server.port(), Protocol::Postgres)?;
    rig.server_url = link.through(&rig.server_url);
    let (admin, mut stream) = rig.run().await?;
    rig.insert("before").await?;
    receives(&mut stream, "before").await?;
    link.cut().await?;
    outage(&mut stream).await?;
    match admin.check(&rig.subject, None).await {
        Err(Error::Outage(_)) => {}
        other => panic!("{other:?}"),
    }
    drop(stream);
    rig.slot_is_free().await?;
    let (_admin, mut stream) = rig.run().await?;
    receives(&mut stream, "before").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_link_is_an_outage() -> Result<()> {
    let server = start(PostgresOptions { wal_sender_timeout_ms: Some(2000), ..options() }).await?;
    let mut rig = Rig::ready_on(&server, "silent").await?;
    let direct = rig.admin().await?;
    let link = Link::start(server.port(), Protocol::Postgres)?;
    rig.server_url = link.through(&rig.server_url);
    let (through, mut stream) = rig.run().await?;
    rig.insert("before").await?;
    receives(&mut stream, "before").await?;
    link.stall();
    // What has to come by the link tells it in the end: the check's own limit.
    let checked =
        tokio::time::timeout(LIMIT, through.check(&rig.subject, Some(stream.walsender_pid()))).await?;
    assert!(matches!(checked, Err(Error::Outage(_))), "{checked:?}");
    // And a check by another way sees that the server has given us up, or has sent what did not arrive.
    rig.insert("after").await?;
    let pid = stream.walsender_pid();
    eventually("the silence to be noticed", LIMIT, async || {
        Ok(match direct.check(&rig.subject, Some(pid)).await {
            Ok(seen) => stream.silent(&seen).map(drop),
            Err(Error::Outage(_)) => Some(()),
            Err(e) => return Err(e.into()),
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_is_silent_and_that_is_no_outage() -> Result<()> {
    let server = start(PostgresOptions { wal_sender_timeout_ms: Some(1000), ..options() }).await?;
    let rig = Rig::ready_on(&server, "idle").await?;
    let (admin, mut stream) = rig.run().await?;
    // Three times the server's timeout, in which it hears from us at least every quarter of it.
    let until = tokio::time::Instant::now() + Duration::from_secs(3);
    while let Ok(frame) = tokio::time::timeout_at(until, stream.next()).await {
        frame?;
    }
    let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
    assert!(stream.silent(&seen).is_none());
    rig.insert("awake").await?;
    receives(&mut stream, "awake").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ready_is_handed_over_without_waiting() -> Result<()> {
    let rig = Rig::ready("ready").await?;
    let (_admin, mut stream): (Admin, SlotStream) = rig.run().await?;
    rig.execute(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type)
         select 't', i, 'e' from generate_series(1, 1000) i",
    )
    .await?;
    // The first is waited for; what comes behind it gets ready by itself, while nobody waits.
    let mut frames = vec![tokio::time::timeout(LIMIT, stream.next()).await??];
    let inserts = |frames: &[Frame]| {
        frames.iter().filter(|f| matches!(f, Frame::Change(bytes) if bytes[0] == b'I')).count()
    };
    eventually("all to be ready", LIMIT, async || {
        while let Some(frame) = stream.try_next() {
            frames.push(frame);
        }
        Ok((inserts(&frames) >= 1000).then_some(()))
    })
    .await?;
    assert_eq!(inserts(&frames), 1000);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_nobody_takes_are_no_silence() -> Result<()> {
    let server = start(PostgresOptions { wal_sender_timeout_ms: Some(1000), ..options() }).await?;
    let rig = Rig::ready_on(&server, "not_taken").await?;
    let (admin, mut stream) = rig.run().await?;
    rig.execute(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
         select 't', 'row ' || i, 'e', to_json(repeat('x', 10000)) from generate_series(1, 3000) i",
    )
    .await?;
    // As while the broker is away for longer than every limit: the checks go on.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let seen = admin.check(&rig.subject, Some(stream.walsender_pid())).await?;
        assert!(stream.silent(&seen).is_none());
    }
    receives(&mut stream, "row 3000").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_says_so_and_is_held_up_only_by_our_session() -> Result<()> {
    let mut server = start(options()).await?;
    let rig = Rig::ready_on(&server, "shutdown").await?;
    let (admin, mut stream) = rig.run().await?;
    rig.insert("owed").await?;
    receives(&mut stream, "owed").await?;
    server.signal_stop(testenv::Stop::Fast)?;
    // The old connection ends, a new one is refused; the stream lives on, as its last word is awaited.
    eventually("the old connection to end", LIMIT, async || {
        Ok(matches!(admin.check(&rig.subject, None).await, Err(Error::Outage(_))).then_some(()))
    })
    .await?;
    match rig.admin().await {
        Err(e) => assert!(e.is_shutdown(), "{e}"),
        Ok(admin) => panic!("{}", admin.endpoint()),
    }
    let asked = async {
        while !matches!(stream.next().await?, Frame::Keepalive { reply_requested: true, .. }) {}
        Ok::<_, Error>(())
    };
    tokio::time::timeout(LIMIT, asked).await.context("be asked for the last word")??;
    drop(stream);
    server.wait_stopped(LIMIT).await
}
