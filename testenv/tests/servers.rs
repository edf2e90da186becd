//! The servers themselves: they start, stop, come back on their ports, and leave nothing behind.

use std::time::Instant;

use anyhow::Result;
use testenv::{Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Sql, Stop};

#[tokio::test]
async fn postgres_keeps_its_port_and_what_was_committed() -> Result<()> {
    let started = Instant::now();
    let mut server = Postgres::start(PostgresOptions::default()).await?;
    println!("Postgres started in {:?}", started.elapsed());
    let url = server.admin_url("shop");
    server.create_database("shop").await?;
    Sql::connect(&url).await?.batch_execute("create table t (n int); insert into t values (1)").await?;
    for mode in [Stop::Fast, Stop::Immediate, Stop::Smart] {
        println!("{mode:?} took {:?}", server.stop(mode).await?);
        server.start_again().await?;
    }
    server.sigkill().await?;
    server.start_again().await?;
    let rows = Sql::connect(&url).await?.query("select n from t", &[]).await?;
    assert_eq!(rows.len(), 1);
    assert!(server.log().contains("database system was not properly shut down"));
    Ok(())
}

#[tokio::test]
async fn rabbitmq_keeps_its_port() -> Result<()> {
    let started = Instant::now();
    let mut server = RabbitMq::start(RabbitMqOptions::default()).await?;
    println!("RabbitMQ started in {:?}", started.elapsed());
    let started = Instant::now();
    println!("{}", server.ctl().run(&["list_vhosts"]).await?);
    println!("ctl took {:?}", started.elapsed());
    let started = Instant::now();
    server.block().await?;
    println!("block took {:?}", started.elapsed());
    server.unblock().await?;
    println!("stop took {:?}", server.stop().await?);
    let started = Instant::now();
    server.start_again().await?;
    println!("start again took {:?}", started.elapsed());
    server.sigkill().await?;
    let started = Instant::now();
    server.start_again().await?;
    println!("start again took {:?}", started.elapsed());
    Ok(())
}
