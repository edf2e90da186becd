//! How to reach the peers.

use std::fmt;
use std::sync::Arc;

use lapin::ConnectionProperties;
use lapin::types::LongString;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Any error that can go to another thread.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error with what is behind it: Postgres' client only says `db error` itself.
pub(super) fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Makes connections, again and again.
pub trait Connect: Send + Sync + 'static {
    /// A connection to the broker, without auto-recovery.
    fn broker(&self) -> impl Future<Output = Result<lapin::Connection, BoxError>> + Send;

    /// A connection to the database: one for each message that is handled at the same time.
    fn database(&self) -> impl Future<Output = Result<Database, BoxError>> + Send;
}

/// A connection to Postgres with the task that moves its bytes, which ends with it.
pub struct Database {
    pub(super) client: Client,
    /// Aborted on drop.
    _driver: JoinSet<()>,
}

impl Database {
    /// What `tokio_postgres::connect` made.
    pub fn new<S, T>(client: Client, connection: tokio_postgres::Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The client's own calls answer with the error.
            let _ = connection.await;
        });
        Self { client, _driver: driver }
    }
}

/// Both peers by URL. Not shown, for its passwords.
///
/// Whoever needs more, a client's certificate say, writes a [`Connect`] of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Urls {
    /// `amqp://user:password@host:port/vhost`, or `amqps`.
    pub broker: String,
    /// `postgres://user:password@host:port/database`. With `?sslmode=require` the connection is encrypted, and the
    /// server's certificate verified, name included, by the authorities that the system trusts, or those in the
    /// file that the environment names by `SSL_CERT_FILE`, as for `amqps`. Else it is not encrypted.
    pub database: String,
}

impl fmt::Debug for Urls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Urls(***)")
    }
}

impl Connect for Urls {
    async fn broker(&self) -> Result<lapin::Connection, BoxError> {
        let properties =
            ConnectionProperties::default().with_connection_name(LongString::from("postrider-inbox"));
        Ok(lapin::Connection::connect(&self.broker, properties).await?)
    }

    async fn database(&self) -> Result<Database, BoxError> {
        let config: Config = self.database.parse()?;
        if config.get_ssl_mode() != SslMode::Require {
            let (client, connection) = config.connect(NoTls).await?;
            return Ok(Database::new(client, connection));
        }
        // Read anew: certificates are renewed while a consumer runs.
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        encrypted(&config, roots).await
    }
}

async fn encrypted(config: &Config, roots: RootCertStore) -> Result<Database, BoxError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await?;
    Ok(Database::new(client, connection))
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, Result};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use testenv::{Postgres, PostgresOptions, Tls};

    use super::*;

    #[tokio::test]
    async fn an_outage_names_its_cause() -> Result<()> {
        let server = Postgres::start(PostgresOptions { fsync: false, ..PostgresOptions::default() }).await?;
        for (database, cause) in [
            (server.url("nobody", "wrong", "postgres"), "password authentication failed for user"),
            (server.admin_url("nowhere"), "database \"nowhere\" does not exist"),
        ] {
            let refused = Urls { broker: String::new(), database }.database().await.err();
            let refused = words(&*refused.context("it cannot be reached")?);
            assert!(refused.contains(cause), "{refused}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_server_is_believed_by_its_certificate_only() -> Result<()> {
        let options = PostgresOptions { fsync: false, tls: Tls::Required, ..PostgresOptions::default() };
        let server = Postgres::start(options).await?;
        let config: Config = (server.admin_url("postgres") + "?sslmode=require").parse()?;
        let mut roots = RootCertStore::empty();
        let authority = server.certificates().context("there are certificates")?.authority();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let database = encrypted(&config, roots).await.map_err(anyhow::Error::from_boxed)?;
        let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        assert!(database.client.query_one(query, &[]).await?.get::<_, bool>(0));

        // Of an authority that nobody here trusts.
        let urls = |database: String| Urls { broker: String::new(), database };
        let refused = urls(server.admin_url("postgres") + "?sslmode=require").database().await.err();
        let refused = format!("{:?}", refused.context("it cannot be verified")?);
        assert!(refused.contains("UnknownIssuer"), "{refused}");
        let refused = urls(server.admin_url("postgres")).database().await.err();
        let refused = format!("{:?}", refused.context("the server insists on TLS")?);
        assert!(refused.contains("no encryption"), "{refused}");
        Ok(())
    }
}
