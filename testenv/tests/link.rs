//! The link between a client and a server: what a test orders is what the client sees.

use std::time::Duration;

use amqprs::BasicProperties;
use amqprs::channel::BasicPublishArguments;
use amqprs::connection::{Connection, OpenConnectionArguments};
use anyhow::{Context as _, Result};
use testenv::{Direction, Link, Postgres, PostgresOptions, Protocol, Scope, Sql};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);

async fn postgres() -> Result<(Postgres, Link, String)> {
    let server = Postgres::start(PostgresOptions { fsync: false, ..PostgresOptions::default() }).await?;
    let link = Link::start(server.port(), Protocol::Postgres)?;
    let url = link.through(&server.admin_url("postgres"));
    Ok((server, link, url))
}

#[tokio::test]
async fn a_cut_inside_a_row_ends_the_query_and_nothing_else() -> Result<()> {
    let (_server, link, url) = postgres().await?;
    let sql = Sql::connect(&url).await?;
    let other = Sql::connect(&url).await?;
    let mut rows = 0;
    let cut = link.cut_inside_frame(Direction::ToClient, move |frame| {
        rows += u64::from(frame.kind == b'D');
        rows == 500
    });
    sql.query("select repeat('x', 100) from generate_series(1, 1000)", &[])
        .await
        .err()
        .context("a cut query fails")?;
    let cut = cut.fired(LIMIT).await?;
    assert_eq!(cut.frame.kind, b'D');
    assert!(cut.passed > 50 && cut.passed < cut.frame.size, "{cut}");
    assert_eq!(other.query("select 1", &[]).await?.len(), 1, "the other connection lives");
    assert_eq!(Sql::connect(&url).await?.query("select 1", &[]).await?.len(), 1, "a new connection lives");
    Ok(())
}

#[tokio::test]
async fn a_link_cuts_stalls_and_refuses() -> Result<()> {
    let (_server, link, url) = postgres().await?;
    let sql = Sql::connect(&url).await?;
    assert_eq!(link.connections().await?, 1);
    assert_eq!(link.cut().await?, 1);
    sql.query("select 1", &[]).await.err().context("a cut connection fails")?;

    let sql = Sql::connect(&url).await?;
    link.stall();
    let mut query = std::pin::pin!(sql.query("select 1", &[]));
    assert!(timeout(Duration::from_millis(300), &mut query).await.is_err(), "a stalled link answers nothing");
    link.resume();
    assert_eq!(timeout(LIMIT, query).await??.len(), 1);

    link.refuse().await?;
    Sql::connect(&url).await.err().context("a refused connection fails")?;
    assert_eq!(sql.query("select 1", &[]).await?.len(), 1, "an open connection lives on");
    link.accept().await?;
    Sql::connect(&url).await?;
    Ok(())
}

#[tokio::test]
async fn a_slow_link_is_slow() -> Result<()> {
    let (_server, link, url) = postgres().await?;
    let sql = Sql::connect(&url).await?;
    link.rate(Some(100_000));
    let mut query = std::pin::pin!(sql.query("select repeat('x', 100000)", &[]));
    assert!(timeout(Duration::from_millis(200), &mut query).await.is_err(), "100 kB take a second");
    link.rate(None);
    assert_eq!(timeout(LIMIT, query).await??.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_cut_inside_a_message_body_ends_the_connection() -> Result<()> {
    let scope = Scope::shared("cut inside a body").await?;
    let link = Link::start(scope.addresses().rabbitmq_port, Protocol::Amqp)?;
    let arguments = OpenConnectionArguments::new("127.0.0.1", link.port(), "guest", "guest");
    let connection = timeout(LIMIT, Connection::open(&arguments)).await??;
    let channel = timeout(LIMIT, connection.open_channel(None)).await??;
    let mut bodies = 0;
    let cut = link.cut_inside_frame(Direction::ToServer, move |frame| {
        bodies += u64::from(frame.is_body());
        bodies == 3
    });
    for _ in 0..3 {
        let to_nobody = BasicPublishArguments::new("", scope.name());
        channel.basic_publish(BasicProperties::default(), vec![b'x'; 1000], to_nobody).await?;
    }
    let cut = cut.fired(LIMIT).await?;
    assert_eq!(cut.frame.size, 1008);
    assert!(
        cut.to_string().contains("of the 1008 bytes of frame")
            && cut.to_string().ends_with("(body) to the server")
    );
    assert!(timeout(LIMIT, connection.listen_network_io_failure()).await?, "the client sees the cut");
    Ok(())
}
