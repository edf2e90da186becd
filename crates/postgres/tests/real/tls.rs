//! TLS to a real server, by both clients.

use anyhow::Result;
use postrider_postgres::{Error, Reason, Server, UrlError};
use testenv::{Postgres, PostgresOptions, Tls};

use crate::rig::{Rig, options, receives, start, stopped};

async fn encrypted_only(name: &str) -> Result<(Postgres, Rig)> {
    let server = start(PostgresOptions { tls: Tls::Offered, ..options() }).await?;
    let rig = Rig::ready_on(&server, name).await?;
    let path: String = rig.sql.query_one("show hba_file", &[]).await?.get(0);
    std::fs::write(&path, std::fs::read_to_string(&path)?.replace("host ", "hostssl "))?;
    rig.execute("select pg_reload_conf()").await?;
    Ok((server, rig))
}

fn with(rig: &mut Rig, host: &str, query: &str) {
    let url = rig.server_url.split('?').next().unwrap_or_default();
    let (login, rest) = url.rsplit_once('@').expect("testenv's URL has a login");
    let (_, rest) = rest.split_once(':').expect("testenv's URL has a port");
    rig.server_url = format!("{login}@{host}:{rest}?{query}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_that_encrypts_streams() -> Result<()> {
    let (server, mut rig) = encrypted_only("encrypted").await?;
    let authority = server.certificates().expect("it was started with TLS").authority().display().to_string();
    for (host, query) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={authority}")),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={authority}")),
        ("elsewhere.example", format!("sslmode=verify-ca&hostaddr=127.0.0.1&sslrootcert={authority}")),
        ("localhost", format!("sslmode=require&sslrootcert={authority}")),
        ("localhost", "sslmode=require".to_owned()),
        ("localhost", "sslmode=prefer".to_owned()),
        ("localhost", "sslmode=allow".to_owned()),
    ] {
        with(&mut rig, host, &query);
        let (_admin, mut stream) = rig.run().await.map_err(|e| anyhow::anyhow!("{host} {query}: {e}"))?;
        let encrypted: bool = rig
            .sql
            .query_one("select ssl from pg_stat_ssl where pid = $1", &[&stream.walsender_pid()])
            .await?
            .get(0);
        assert!(encrypted, "{query}");
        rig.insert(host).await?;
        receives(&mut stream, host).await?;
        drop(stream);
        rig.slot_is_free().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_transactions_pass_the_private_socket() -> Result<()> {
    let (_server, mut rig) = encrypted_only("large").await?;
    with(&mut rig, "localhost", "sslmode=require");
    let (_admin, mut stream) = rig.run().await?;
    rig.execute(
        "insert into postrider.outbox (aggregate_type, aggregate_id, event_type, payload)
         select 't', 'row ' || i, 'e', to_json(repeat('x', 10000)) from generate_series(1, 3000) i",
    )
    .await?;
    receives(&mut stream, "row 3000").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_trusted_is_no_server() -> Result<()> {
    let (_server, mut rig) = encrypted_only("untrusted").await?;
    let stranger = start(PostgresOptions { tls: Tls::Offered, ..options() }).await?;
    let other = stranger.certificates().expect("it was started with TLS").authority().display().to_string();
    for (host, query) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={other}")),
        ("localhost", format!("sslmode=verify-ca&sslrootcert={other}")),
        ("localhost", format!("sslmode=require&sslrootcert={other}")),
    ] {
        with(&mut rig, host, &query);
        match rig.run().await {
            Err(Error::Outage(why)) => assert!(why.contains("certificate"), "{why}"),
            Err(e) => panic!("{query}: {e}"),
            Ok(_) => panic!("{query}: connected"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_name_is_refused_by_verify_full_only() -> Result<()> {
    let (server, mut rig) = encrypted_only("wrong_name").await?;
    let authority = server.certificates().expect("it was started with TLS").authority().display().to_string();
    with(
        &mut rig,
        "elsewhere.example",
        &format!("hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={authority}"),
    );
    match rig.run().await {
        Err(Error::Outage(why)) => assert!(why.contains("elsewhere.example"), "{why}"),
        other => panic!("{:?}", other.map(drop)),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_where_encryption_is_asked_for_does_not_connect() -> Result<()> {
    let (_server, mut rig) = encrypted_only("plain").await?;
    with(&mut rig, "localhost", "sslmode=disable");
    let stop = stopped(rig.run().await)?;
    assert_eq!(stop.reason, Reason::Login, "{stop}");

    let mut rig = Rig::ready("never_encrypted").await?;
    with(&mut rig, "localhost", "sslmode=require");
    match rig.run().await {
        Err(Error::Outage(why)) => assert!(why.contains("does not offer TLS"), "{why}"),
        other => panic!("{:?}", other.map(drop)),
    }
    with(&mut rig, "localhost", "sslmode=prefer");
    rig.run().await?;
    Ok(())
}

#[test]
fn wrong_settings_are_found_before_connecting() {
    for query in [
        "sslmode=verify-ca&sslrootcert=/nowhere",
        "sslmode=sometimes",
        "sslmode=verify-ca&sslrootcert=system",
    ] {
        let parsed = Server::parse(&format!("postgres://u@localhost/d?{query}"));
        assert!(matches!(parsed, Err(UrlError::Certificate { .. } | UrlError::Value { .. })), "{query}");
    }
}
