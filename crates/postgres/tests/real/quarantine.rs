//! The quarantine table on real servers: each piece of work, done twice, as the relay's role.

mod drafts;
mod sessions;

use anyhow::{Result, bail};
use bytes::Bytes;
use postrider_postgres::{Quarantine, SlotStream};
use postrider_relay::quarantine::{
    Done, Draft, ParkedAggregate, ParkedKey, Parking, PositionPage, PutBack, Released, Request, Scope, Work,
};
use postrider_relay::{AggregateKey, HeaderValue, Lsn, Position, Reason};

use crate::rig::Rig;

/// A database whose slot is held by a stream, and its quarantine.
pub(crate) struct Ward {
    pub(crate) rig: Rig,
    pub(crate) stream: SlotStream,
    pub(crate) quarantine: Quarantine,
    /// Where the slot stands.
    start: u64,
}

impl Ward {
    async fn ready(name: &str) -> Result<Ward> {
        let rig = Rig::ready(name).await?;
        let (_admin, stream) = rig.run().await?;
        let quarantine = Quarantine::connect(&rig.server(), &rig.subject, stream.walsender_pid()).await?;
        let slot = rig.inspect().await?.slot;
        let start = slot.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default().0;
        Ok(Ward { rig, stream, quarantine, start })
    }

    fn at(&self, n: u64) -> Position {
        at(self.start + n)
    }

    fn row(&self, n: u64, aggregate: &str) -> Parking {
        row(self.at(n), aggregate)
    }

    async fn store(&mut self, rows: Vec<Parking>) -> Result<u64> {
        match self.quarantine.perform(&Work::Store(rows)).await? {
            Done::Stored { new } => Ok(new),
            other => bail!("stored: {other:?}"),
        }
    }

    async fn open(&mut self, positions: usize) -> Result<(Vec<ParkedAggregate>, u64, bool, PositionPage)> {
        match self.quarantine.perform(&Work::Open { positions }).await? {
            Done::Opened { parked, undelivered, released, page } => Ok((parked, undelivered, released, page)),
            other => bail!("opened: {other:?}"),
        }
    }

    /// The rows moved, and the aggregates.
    async fn release(&mut self, request: &Request) -> Result<(u64, Vec<ParkedKey>)> {
        match self.quarantine.perform(&Work::Release(request.clone())).await? {
            Done::Released { rows, aggregates } => Ok((rows, sorted(aggregates))),
            other => bail!("released: {other:?}"),
        }
    }

    /// The rows moved, and the aggregates that are free.
    async fn discard(&mut self, request: &Request) -> Result<(u64, Vec<ParkedKey>)> {
        match self.quarantine.perform(&Work::Discard(request.clone())).await? {
            Done::Discarded { rows, free } => Ok((rows, sorted(free))),
            other => bail!("discarded: {other:?}"),
        }
    }

    /// The same.
    async fn delivered(&mut self, positions: &[Position]) -> Result<(u64, Vec<ParkedKey>)> {
        match self.quarantine.perform(&Work::Delivered(positions.to_vec())).await? {
            Done::Delivered { rows, free } => Ok((rows, sorted(free))),
            other => bail!("delivered: {other:?}"),
        }
    }

    async fn page(
        &mut self,
        busy: &[&str],
        busy_rows: &[Position],
        rows: usize,
        bytes: usize,
    ) -> Result<(Vec<Released>, bool)> {
        let work = Work::Page {
            busy: busy.iter().map(|id| key(id)).collect(),
            busy_rows: busy_rows.to_vec(),
            rows,
            bytes,
        };
        match self.quarantine.perform(&work).await? {
            Done::Page { rows, more } => Ok((rows, more)),
            other => bail!("page: {other:?}"),
        }
    }

    /// Every row's state in the order of the log.
    async fn states(&self) -> Result<String> {
        let states = "select coalesce(string_agg(state, ' ' order by commit_lsn, index), '') from postrider.quarantine";
        Ok(self.rig.sql.query_one(states, &[]).await?.get(0))
    }

    fn request(&self, n: u64, aggregates: &[&str], positions: &[u64]) -> Request {
        Request {
            position: self.at(n),
            id: 7,
            by: "me".to_owned(),
            aggregates: aggregates.iter().map(|id| key(id)).collect(),
            positions: positions.iter().map(|&n| self.at(n)).collect(),
        }
    }
}

fn at(lsn: u64) -> Position {
    Position { commit_lsn: Lsn(lsn), index: 0 }
}

fn key(id: &str) -> ParkedKey {
    ParkedKey::of(&AggregateKey::new("t", id))
}

fn sorted(mut keys: Vec<ParkedKey>) -> Vec<ParkedKey> {
    keys.sort();
    keys
}

fn keys(ids: &[&str]) -> Vec<ParkedKey> {
    sorted(ids.iter().map(|id| key(id)).collect())
}

/// A row of scope `key` with a body of 300 bytes.
fn row(position: Position, aggregate: &str) -> Parking {
    Parking {
        position,
        scope: Scope::Key,
        released: false,
        reason: Reason::Unrouted,
        detail: "no queue".to_owned(),
        attempts: 12,
        aggregate: Some(AggregateKey::new("t", aggregate)),
        committed_us: 1_700_000_000_123_456,
        draft: Draft {
            exchange: Some("postrider".into()),
            routing_key: Some("t.e".into()),
            message_id: Some(format!("id {position}").into()),
            headers: vec![("aggregate_id".into(), HeaderValue::Text(aggregate.into()))],
            body: Some(Bytes::from(vec![b'x'; 300])),
            ..Draft::default()
        },
    }
}

fn released(row: Parking) -> Parking {
    Parking { released: true, ..row }
}

fn alone(row: Parking) -> Parking {
    Parking { scope: Scope::Event, ..row }
}

fn positions(rows: &[Released]) -> Vec<Position> {
    rows.iter().map(|row| row.position).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_there_stays_as_it_is() -> Result<()> {
    let mut ward = Ward::ready("quarantine_store").await?;
    let rows = vec![ward.row(1, "a"), released(ward.row(2, "b"))];
    assert_eq!(ward.store(rows.clone()).await?, 2);
    ward.rig.execute("update postrider.quarantine set routing_key = 'mended'").await?;
    let more = [rows, vec![ward.row(3, "c")]].concat();
    assert_eq!(ward.store(more).await?, 1);
    assert_eq!(ward.states().await?, "parked released parked");
    let mended = "select count(*) from postrider.quarantine where routing_key = 'mended'";
    assert_eq!(ward.rig.sql.query_one(mended, &[]).await?.get::<_, i64>(0), 2);
    assert_eq!(ward.store(Vec::new()).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_finds_what_is_parked_and_what_the_slot_sends_again() -> Result<()> {
    let mut ward = Ward::ready("quarantine_open").await?;
    let (parked, undelivered, released_any, page) = ward.open(10).await?;
    assert!(parked.is_empty() && undelivered == 0 && !released_any);
    assert!(page.positions.is_empty() && page.complete);
    let below = row(at(ward.start - 1), "old");
    let nobody = Parking { aggregate: None, ..ward.row(6, "") };
    let rows = vec![
        below,
        ward.row(0, "a"),
        ward.row(1, "b"),
        released(ward.row(2, "b")),
        ward.row(3, "a"),
        alone(ward.row(4, "c")),
        ward.row(5, "gone"),
        nobody,
    ];
    ward.store(rows).await?;
    // Rows of another slot are none of ours.
    ward.rig
        .execute("insert into postrider.quarantine select * from postrider.quarantine on conflict do nothing; \
                  create temp table other as select * from postrider.quarantine; update other set slot = 'other'; \
                  insert into postrider.quarantine select * from other")
        .await?;
    let request = ward.request(9, &["gone"], &[]);
    assert_eq!(ward.discard(&request).await?, (1, keys(&["gone"])));
    let (mut parked, undelivered, released_any, page) = ward.open(3).await?;
    parked.sort_by_key(|aggregate| aggregate.first);
    let expected = [("old", at(ward.start - 1), false), ("a", ward.at(0), false), ("b", ward.at(1), true)]
        .map(|(id, first, releasing)| ParkedAggregate { key: key(id), first, releasing });
    assert_eq!(parked, expected);
    assert_eq!((undelivered, released_any), (7, true));
    assert_eq!(page.positions, [ward.at(0), ward.at(1), ward.at(2)]);
    assert!(!page.complete);
    for (positions, complete) in [(3, false), (4, true), (5, true)] {
        let work = Work::Positions { after: ward.at(2), positions };
        let Done::Positions(page) = ward.quarantine.perform(&work).await? else { bail!("no positions") };
        let all = [3, 4, 5, 6].map(|n| ward.at(n));
        assert_eq!((&*page.positions, page.complete), (&all[..positions.min(4)], complete));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_moves_what_was_parked_before_it_and_only_once() -> Result<()> {
    let mut ward = Ward::ready("quarantine_release").await?;
    let rows = vec![
        ward.row(1, "a"),
        ward.row(2, "b"),
        ward.row(3, "a"),
        alone(ward.row(4, "c")),
        alone(ward.row(5, "c")),
        ward.row(20, "a"),
    ];
    ward.store(rows).await?;
    // An aggregate by name, and a row that stands for itself; neither moves what lies behind the request.
    let first = ward.request(10, &["a"], &[4]);
    assert_eq!(ward.release(&first).await?, (3, keys(&["a"])));
    assert_eq!(ward.states().await?, "released parked released released parked parked");
    assert_eq!(ward.release(&first).await?, (0, keys(&["a"])));
    let who = "select command_id::text || changed_by || command_lsn::text from postrider.quarantine where state = 'released' limit 1";
    let said: String = ward.rig.sql.query_one(who, &[]).await?.get(0);
    assert_eq!(said, format!("7me{}", ward.at(10).commit_lsn));

    // It failed: the same request, read again, leaves it; a later one moves it. One row means its aggregate.
    let put_back =
        PutBack { position: ward.at(1), reason: Reason::Nacked, detail: "no".to_owned(), attempts: 3 };
    assert!(matches!(ward.quarantine.perform(&Work::PutBack(put_back)).await?, Done::PutBack));
    assert_eq!(ward.states().await?, "parked parked parked released parked parked");
    assert_eq!(ward.release(&first).await?, (0, Vec::new()));
    let second = ward.request(11, &[], &[3]);
    assert_eq!(ward.release(&second).await?, (2, keys(&["a"])));
    let nothing = ward.request(12, &["nobody"], &[3, 99]);
    assert_eq!(ward.release(&nothing).await?, (0, Vec::new()));
    let all = ward.request(30, &["a", "b"], &[5, 20]);
    assert_eq!(ward.release(&all).await?, (3, keys(&["a", "b"])));
    assert_eq!(ward.states().await?, "released released released released released released");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_moves_exactly_what_is_named_and_says_what_is_free() -> Result<()> {
    let mut ward = Ward::ready("quarantine_discard").await?;
    let rows = vec![
        ward.row(1, "a"),
        ward.row(2, "a"),
        ward.row(3, "b"),
        ward.row(4, "c"),
        released(ward.row(5, "c")),
        alone(ward.row(6, "d")),
        ward.row(20, "b"),
    ];
    ward.store(rows).await?;
    let first = ward.request(10, &["b", "c"], &[1, 5, 6]);
    assert_eq!(ward.discard(&first).await?, (4, Vec::new()));
    assert_eq!(ward.states().await?, "discarded parked discarded discarded released discarded parked");
    let second = ward.request(30, &["b"], &[2]);
    assert_eq!(ward.discard(&second).await?, (2, keys(&["a", "b"])));
    assert_eq!(ward.discard(&second).await?, (0, keys(&["a", "b"])));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_at_its_limits_and_leaves_out_what_is_busy() -> Result<()> {
    let mut ward = Ward::ready("quarantine_page").await?;
    let nobody = Parking { aggregate: None, ..ward.row(5, "") };
    let rows = [ward.row(1, "a"), ward.row(2, "b"), ward.row(3, "a"), alone(ward.row(4, "a")), nobody];
    let parked = ward.row(6, "a");
    ward.store(rows.map(released).into_iter().chain([parked]).collect()).await?;
    let all = [1, 2, 3, 4, 5].map(|n| ward.at(n));
    for (busy, busy_rows, rows, bytes, expected, more) in [
        (&[][..], &[][..], 100, 1 << 20, &[1, 2, 3, 4, 5][..], false),
        (&[], &[], 5, 1 << 20, &[1, 2, 3, 4, 5], false),
        (&[], &[], 4, 1 << 20, &[1, 2, 3, 4], true),
        // The bodies have 300 bytes each.
        (&[], &[], 100, 900, &[1, 2, 3], true),
        (&[], &[], 100, 899, &[1, 2], true),
        (&[], &[], 100, 1, &[1], true),
        (&["a"], &[], 100, 1 << 20, &[2, 4, 5], false),
        (&["a", "b"], &[4], 100, 1 << 20, &[5], false),
        (&["a", "b"], &[4, 5], 100, 1 << 20, &[], false),
        (&["a"], &[4], 1, 1, &[2], true),
    ] {
        let busy_at: Vec<Position> = busy_rows.iter().map(|&n| ward.at(n)).collect();
        let (page, is_more) = ward.page(busy, &busy_at, rows, bytes).await?;
        let expected: Vec<Position> = expected.iter().map(|&n| ward.at(n)).collect();
        assert_eq!((positions(&page), is_more), (expected, more), "{busy:?} {busy_rows:?} {rows} {bytes}");
    }
    let (page, _) = ward.page(&[], &[], 100, 1 << 20).await?;
    assert_eq!(positions(&page), all);
    let kinds: Vec<_> = page.iter().map(|row| (row.scope, row.aggregate)).collect();
    let (a, b) = (Some(key("a")), Some(key("b")));
    let keyed = Scope::Key;
    assert_eq!(kinds, [(keyed, a), (keyed, b), (keyed, a), (Scope::Event, a), (keyed, None)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_is_free_when_its_last_row_is_delivered() -> Result<()> {
    let mut ward = Ward::ready("quarantine_delivered").await?;
    let rows = vec![
        released(ward.row(1, "a")),
        released(ward.row(2, "a")),
        released(ward.row(3, "b")),
        released(alone(ward.row(4, "c"))),
        ward.row(5, "d"),
    ];
    ward.store(rows).await?;
    let (one, both) = ([ward.at(1)], [ward.at(2), ward.at(3), ward.at(4), ward.at(5)]);
    assert_eq!(ward.delivered(&one).await?, (1, Vec::new()));
    assert_eq!(ward.delivered(&both).await?, (3, keys(&["a", "b"])));
    assert_eq!(ward.delivered(&both).await?, (0, keys(&["a", "b"])));
    assert_eq!(ward.states().await?, "delivered delivered delivered delivered parked");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_parked_again_with_its_aggregate() -> Result<()> {
    let mut ward = Ward::ready("quarantine_put_back").await?;
    let rows = vec![
        released(ward.row(1, "a")),
        released(ward.row(2, "a")),
        released(ward.row(3, "b")),
        released(alone(ward.row(4, "a"))),
        released(alone(ward.row(5, "a"))),
    ];
    ward.store(rows).await?;
    ward.delivered(&[ward.at(1)]).await?;
    let put_back = |position| {
        Work::PutBack(PutBack {
            position,
            reason: Reason::ChannelClosed,
            detail: "a\0b".to_owned(),
            attempts: 2,
        })
    };
    for _ in 0..2 {
        for n in [2, 4] {
            let work = put_back(ward.at(n));
            assert!(matches!(ward.quarantine.perform(&work).await?, Done::PutBack));
        }
    }
    assert_eq!(ward.states().await?, "delivered parked released parked released");
    let told = "select string_agg(concat_ws(' ', reason, detail, attempts), ', ' order by commit_lsn) from postrider.quarantine where state = 'parked'";
    let told: String = ward.rig.sql.query_one(told, &[]).await?.get(0);
    assert_eq!(told, "channel_closed a\u{FFFD}b 14, channel_closed a\u{FFFD}b 14");
    // A delivered row does not come back.
    ward.quarantine.perform(&put_back(ward.at(1))).await?;
    assert_eq!(ward.states().await?, "delivered parked released parked released");
    Ok(())
}

/// A short life of a row in every state, for servers of other versions.
pub(crate) async fn serves(rig: Rig, stream: SlotStream) -> Result<()> {
    let quarantine = Quarantine::connect(&rig.server(), &rig.subject, stream.walsender_pid()).await?;
    let start = rig.inspect().await?.slot.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default().0;
    let mut ward = Ward { rig, stream, quarantine, start };
    let rows = vec![ward.row(1, "a"), ward.row(2, "a"), ward.row(3, "b"), ward.row(4, "c")];
    assert_eq!(ward.store(rows).await?, 4);
    let release = ward.request(10, &["a"], &[4]);
    assert_eq!(ward.release(&release).await?, (3, keys(&["a", "c"])));
    let discard = ward.request(11, &["b"], &[]);
    assert_eq!(ward.discard(&discard).await?, (1, keys(&["b"])));
    let (page, more) = ward.page(&["c"], &[], 1, 1 << 20).await?;
    assert_eq!((positions(&page), more), (vec![ward.at(1)], true));
    assert_eq!(ward.delivered(&[ward.at(1)]).await?, (1, Vec::new()));
    let failed = PutBack { position: ward.at(2), reason: Reason::Nacked, detail: String::new(), attempts: 1 };
    ward.quarantine.perform(&Work::PutBack(failed)).await?;
    let (parked, undelivered, released, page) = ward.open(10).await?;
    assert_eq!((parked.len(), undelivered, released), (2, 2, true));
    assert_eq!((page.positions.len(), page.complete), (4, true));
    assert_eq!(ward.states().await?, "delivered parked discarded released");
    ward.rig.execute("truncate postrider.quarantine").await?;
    drop(ward.stream);
    ward.rig.slot_is_free().await
}
