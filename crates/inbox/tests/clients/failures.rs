//! Work that fails: rolled back, counted in the database, tried again after a pause, parked at last.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use testenv::consumer::Value;
use testenv::{eventually, languages};

use crate::once::reason;
use crate::station::{ATTEMPTS, LIMIT, Language, Station};

/// The first two attempts fail. A sequence does not roll back.
const PAPER_JAM: &str = "create sequence tries;
    create function jam() returns trigger language plpgsql security definer as
    $$ begin if nextval('public.tries') <= 2 then raise 'a paper jam'; end if; return new; end $$;
    create trigger jam before update on report for each row execute function jam()";

/// The work fails as long as this stands; when the failures were recorded is written down.
const NO_PAPER: &str = "alter table report add constraint paper check (counter < 7);
    create table failure (attempts integer, at timestamptz);
    create function note() returns trigger language plpgsql as
    $$ begin insert into public.failure values (new.attempts, clock_timestamp()); return null; end $$;
    create trigger note after insert or update on postrider.inbox for each row when (new.status = 'failed')
        execute function note()";

pub(crate) async fn mended(language: Language) -> Result<()> {
    let station = Station::new(language, "mended").await?;
    station.sql.batch_execute(PAPER_JAM).await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    worker.wait_log("E-42: process", LIMIT).await?;
    assert_eq!(station.counter().await?, 7);
    assert_eq!(station.number("select last_value from tries").await?, 3);
    let failed = "select attempts::bigint from postrider.inbox where last_error like '%a paper jam%'";
    assert_eq!(station.number(failed).await?, 3, "two that failed, and the last");
    station.all_acknowledged(&worker).await
}

pub(crate) async fn used_up(language: Language) -> Result<()> {
    let station = Station::new(language, "used up").await?;
    station.sql.batch_execute(NO_PAPER).await?;
    let worker = station.run().await?;
    station.send("E-42", "one").await?;
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), reason(&parked)), ("E-42", "exhausted"));
    assert_eq!(parked.headers.get("inbox_parked_attempts"), Some(&Value::Int(ATTEMPTS)));
    assert!(parked.text("inbox_parked_error").is_some_and(|error| error.contains("paper")), "{parked:?}");
    assert_eq!(station.counter().await?, 6);
    assert_eq!(station.number("select count(*) from failure").await?, i64::from(ATTEMPTS));
    // A pause can only be longer than it was asked for: 100 ms, doubled each time, less a fifth and a rounding.
    let hot = "select count(*) from (
            select attempts, at - lag(at) over (order by attempts) as pause from failure) as f
        where pause < 0.07 * pow(2, attempts - 2) * interval '1 second'";
    assert_eq!(station.number(hot).await?, 0, "between two attempts there is a pause");

    station.sql.batch_execute("alter table report drop constraint paper").await?;
    station.all_acknowledged(&worker).await?;
    assert_eq!(station.counter().await?, 7, "only the last one counts");
    Ok(())
}

/// Publishes what other clients can: a number with a fraction in a header, an id that is no UTF-8.
const ODD: &str = "
import struct, sys, pika, pika.data
encode = pika.data.encode_value
def encode_value(pieces, value):
    if not isinstance(value, float):
        return encode(pieces, value)
    pieces.append(struct.pack('>cd', b'd', value))
    return 9
pika.data.encode_value = encode_value
with pika.BlockingConnection(pika.URLParameters(sys.argv[1])) as connection:
    channel = connection.channel()
    channel.confirm_delivery()
    headers = {'price': 9.5, 'more': [{'prices': [9.5]}]}
    for message_id in ('E-42', b'E-\\xff'):
        properties = pika.BasicProperties(message_id=message_id, headers=headers, delivery_mode=2)
        channel.basic_publish('', sys.argv[2], b'one', properties)
";

pub(crate) async fn odd(language: Language) -> Result<()> {
    let station = Station::new(language, "odd").await?;
    station.sql.batch_execute(NO_PAPER).await?;
    let mut publish = Command::new(languages::python()?);
    publish.args(["-c", ODD, station.queue.url(), station.queue.name()]);
    let published = publish.output().context("start Python")?;
    ensure!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
    let worker = station.run().await?;
    let lot = station.open_parking().await?;
    let both = eventually("both to be parked", LIMIT, async || Ok((lot.depth().await? == 2).then_some(())));
    both.await.with_context(|| format!("the worker's log:\n{}", worker.log().join("\n")))?;
    let parked = station.parked().await?;
    assert_eq!((parked.message_id(), reason(&parked)), ("E-42", "exhausted"));
    assert!(parked.headers.contains_key("price") && parked.headers.contains_key("more"), "{parked:?}");
    Ok(())
}
