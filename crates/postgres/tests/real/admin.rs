//! The admin connection: which host it takes.

use anyhow::Result;
use postrider_postgres::{Admin, Error, Reason, Server};

use crate::rig::{RELAY, RELAY_PASSWORD, Rig, options, receives, shared, socket_url, start, stopped};

/// A port where nobody listens: below those that are handed out.
const DEAD: u16 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_host_that_takes_writes_is_taken_by_both_clients() -> Result<()> {
    let live = shared().await?;
    let mut rig = Rig::ready("several_hosts").await?;
    let read_only = start({
        let mut options = options();
        options.settings.push(("default_transaction_read_only".to_owned(), "off".to_owned()));
        options
    })
    .await?;
    let other = Rig::empty_on(&read_only, "several_hosts").await?;
    other.execute("alter database several_hosts set default_transaction_read_only = on").await?;
    rig.server_url = format!(
        "postgres://{RELAY}:{RELAY_PASSWORD}@127.0.0.1:{DEAD},127.0.0.1:{},127.0.0.1:{}/several_hosts\
         ?target_session_attrs=read-write",
        read_only.port(),
        live.port()
    );
    let (admin, mut stream) = rig.run().await?;
    assert_eq!(admin.endpoint(), format!("127.0.0.1:{}", live.port()));
    rig.insert("found").await?;
    receives(&mut stream, "found").await?;

    // None that will do: each says why.
    let none = rig.server_url.replace(&format!(",127.0.0.1:{}/", live.port()), "/");
    match Admin::connect(&Server::parse(&none)?).await {
        Err(Error::Outage(why)) => assert!(why.contains("refused") && why.contains("read only"), "{why}"),
        other => panic!("{:?}", other.map(|admin| admin.endpoint())),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_serves_both_clients() -> Result<()> {
    let mut rig = Rig::ready("socket").await?;
    rig.server_url = socket_url(shared().await?, RELAY, "socket");
    let (admin, mut stream) = rig.run().await?;
    assert!(admin.endpoint().starts_with('/'), "{}", admin.endpoint());
    rig.insert("by the socket").await?;
    receives(&mut stream, "by the socket").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_md5_password_lets_both_clients_in() -> Result<()> {
    let server = start(options()).await?;
    let mut rig = Rig::ready_on(&server, "md5").await?;
    rig.execute("set password_encryption = md5; create role old login replication password 'old-secret'")
        .await?;
    rig.execute(&format!("grant {RELAY} to old")).await?;
    // scram-sha-256 in pg_hba.conf would refuse it; md5 takes both kinds.
    let path: String = rig.sql.query_one("show hba_file", &[]).await?.get(0);
    let lines = std::fs::read_to_string(&path)?.replace("scram-sha-256", "md5");
    std::fs::write(&path, lines)?;
    rig.execute("select pg_reload_conf()").await?;
    rig.server_url = server.url("old", "old-secret", "md5");
    let (_admin, mut stream) = rig.run().await?;
    rig.insert("by md5").await?;
    receives(&mut stream, "by md5").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_refuses_stops_only_where_no_other_may_let_us_in() -> Result<()> {
    let live = shared().await?.port();
    let url = |hosts: &str| format!("postgres://{RELAY}:wrong@{hosts}/postgres");
    let alone = Admin::connect(&Server::parse(&url(&format!("127.0.0.1:{live}")))?).await;
    assert_eq!(stopped(alone.map(drop))?.reason, Reason::Password);
    let both = Admin::connect(&Server::parse(&url(&format!("127.0.0.1:{live},127.0.0.1:{DEAD}")))?).await;
    assert!(matches!(both, Err(Error::Outage(_))));
    Ok(())
}
