//! The servers themselves: they start, break on request, come back on their ports, and leave nothing behind.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use amqprs::connection::{Connection, OpenConnectionArguments};
use anyhow::{Context as _, Result};
use testenv::consumer::{Queue, QueueKind};
use testenv::{Pair, Postgres, PostgresOptions, RabbitMqOptions, Scope, Sql, Stop, Tls, eventually, install};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);

async fn amqp(port: u16) -> Result<Connection> {
    let arguments = OpenConnectionArguments::new("127.0.0.1", port, "guest", "guest");
    timeout(LIMIT, Connection::open(&arguments))
        .await
        .context("connect in time")?
        .context("connect to RabbitMQ")
}

#[tokio::test]
async fn postgres_keeps_its_port_and_what_was_committed() -> Result<()> {
    let started = Instant::now();
    let mut server = Postgres::start(PostgresOptions::default()).await?;
    println!("Postgres: start {:?}", started.elapsed());
    server.create_database("shop").await?;
    let url = server.admin_url("shop");
    Sql::connect(&url).await?.batch_execute("create table t (n int); insert into t values (1)").await?;
    for mode in [Stop::Fast, Stop::Immediate, Stop::Smart] {
        println!("Postgres: stop {mode:?} {:?}", server.stop(mode).await?);
        Sql::connect(&url).await.err().context("a stopped server refuses")?;
        server.start_again().await?;
    }
    server.sigkill().await?;
    server.start_again().await?;
    let rows = Sql::connect(&url).await?.query("select n from t", &[]).await?;
    assert_eq!(rows.len(), 1);
    assert!(server.log().contains("database system was not properly shut down"));
    let folder = server.socket_folder().to_owned();
    drop(server);
    assert!(!folder.exists());
    Ok(())
}

#[tokio::test]
async fn postgres_wants_the_right_password_and_takes_settings() -> Result<()> {
    let server =
        Postgres::start(PostgresOptions { wal_level: "replica", ..PostgresOptions::default() }).await?;
    let sql = server.connect("postgres").await?;
    sql.batch_execute("create role clerk login password 'p w/:@'").await?;
    Sql::connect(&server.url("clerk", "p w/:@", "postgres")).await?;
    let refused =
        Sql::connect(&server.url("clerk", "wrong", "postgres")).await.err().context("a wrong password")?;
    assert!(format!("{refused:#}").contains("password authentication failed"), "{refused:#}");
    let show = async |name: &str| -> Result<String> {
        Ok(sql.query_one(&format!("show {name}"), &[]).await?.get(0))
    };
    assert_eq!(show("wal_level").await?, "replica");
    assert_eq!(show("fsync").await?, "on");
    server.configure(&[("work_mem", "5MB")])?;
    server.reload()?;
    eventually("the new setting", LIMIT, async || Ok((show("work_mem").await? == "5MB").then_some(()))).await
}

#[tokio::test]
async fn a_private_pair_breaks_and_comes_back() -> Result<()> {
    let started = Instant::now();
    let mut pair = Pair::private(PostgresOptions::default(), RabbitMqOptions::default()).await?;
    println!("pair: start {:?}", started.elapsed());
    let port = pair.rabbitmq.port();
    let folder = pair.rabbitmq.log_path().parent().map(Path::to_owned).context("the log has a folder")?;

    let connection = amqp(port).await?;
    pair.rabbitmq.ctl().close_all_connections("a test asks").await?;
    assert!(timeout(LIMIT, gone(&connection)).await.is_ok(), "the client is told");

    println!("RabbitMQ: stop {:?}", pair.rabbitmq.stop().await?);
    amqp(port).await.err().context("a stopped broker refuses")?;
    pair.rabbitmq.start_again().await?;
    let connection = amqp(port).await?;
    pair.rabbitmq.sigkill().await?;
    assert!(timeout(LIMIT, gone(&connection)).await.is_ok(), "a killed broker's connections end");
    pair.rabbitmq.start_again().await?;

    pair.rabbitmq.pause()?;
    let arguments = OpenConnectionArguments::new("127.0.0.1", port, "guest", "guest");
    let mut opening = std::pin::pin!(Connection::open(&arguments));
    assert!(timeout(Duration::from_millis(300), &mut opening).await.is_err(), "a frozen broker is silent");
    pair.rabbitmq.resume()?;
    timeout(LIMIT, opening).await.context("connect to a thawed broker")??;

    let alarms = async || pair.rabbitmq.ctl().run(&["eval", "rabbit_alarm:get_alarms()."]).await;
    pair.rabbitmq.block().await?;
    eventually("the alarm", LIMIT, async || Ok(alarms().await?.contains("memory").then_some(()))).await?;
    pair.rabbitmq.unblock().await?;
    eventually("no alarm", LIMIT, async || Ok((!alarms().await?.contains("memory")).then_some(()))).await?;

    drop(pair);
    assert!(!folder.exists());
    Ok(())
}

async fn gone(connection: &Connection) {
    while connection.is_open() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn scopes_share_servers_and_nothing_else() -> Result<()> {
    let mut scope = Scope::shared("scopes share servers").await?;
    let other = Scope::shared("scopes share servers").await?;
    assert_ne!(scope.name(), other.name());
    assert_eq!(scope.addresses().postgres_port, other.addresses().postgres_port);
    scope.connect().await?.batch_execute("create table only_here ()").await?;
    other.connect().await?.batch_execute("create table only_here ()").await?;
    scope.take_vhost().await?;
    assert!(scope.amqp_url().ends_with(scope.name()));
    assert!(other.amqp_url().ends_with("/%2F"));
    let mut arguments =
        OpenConnectionArguments::new("127.0.0.1", scope.addresses().rabbitmq_port, "guest", "guest");
    let connection = timeout(LIMIT, Connection::open(arguments.virtual_host(scope.vhost()))).await??;
    timeout(LIMIT, connection.open_channel(None)).await??;
    Ok(())
}

#[tokio::test]
async fn a_channel_that_the_broker_closes_says_why() -> Result<()> {
    let scope = Scope::shared("closed channel").await?;
    let queue = Queue::declare(&scope.amqp_url(), scope.name(), QueueKind::Classic, &[]).await?;
    queue.delete().await?;
    let error = queue.depth().await.expect_err("it is deleted");
    assert!(format!("{error:#}").contains("404: NOT_FOUND"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn other_versions_of_postgres_run_too() -> Result<()> {
    for (bin, version) in [(install::postgres_14()?, "14."), (install::postgres_18()?, "18.")] {
        let server =
            Postgres::start(PostgresOptions { bin: Some(bin), ..PostgresOptions::default() }).await?;
        let sql = server.connect("postgres").await?;
        let running: String = sql.query_one("show server_version", &[]).await?.get(0);
        assert!(running.starts_with(version), "{running}");
        sql.batch_execute("select pg_create_logical_replication_slot('a', 'pgoutput')").await?;
    }
    Ok(())
}

#[tokio::test]
async fn tls_is_required_and_trusted_by_its_authority() -> Result<()> {
    let postgres =
        Postgres::start(PostgresOptions { tls: Tls::Required, ..PostgresOptions::default() }).await?;
    let authority =
        postgres.certificates().context("a server with TLS has certificates")?.authority().display();
    let url = postgres.admin_url("postgres").replace("127.0.0.1", "localhost");
    let psql = |mode: &str| {
        let url = format!("{url}?sslmode={mode}&sslrootcert={authority}");
        let answer = Command::new(postgres.bin().join("psql")).args([&url, "-c", "select 1"]).output();
        anyhow::Ok(answer.context("start psql")?.status.success())
    };
    assert!(psql("verify-full")?);
    assert!(!psql("disable")?);
    Ok(())
}
