//! The admin connection: ordinary SQL beside the stream, on the same server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Row, Statement};

use crate::error::{Error, Reason, SESSION_OVER};
use crate::failure::{self, Doing, chain};
use crate::inspect::{self, Inspection};
use crate::record;
use crate::server::{Host, Server, Writable};
use crate::subject::Subject;
use crate::wire::{Endpoint, WireError};

/// One connection for statements, `application_name` `postrider`; clones share it, and it ends with
/// the last of them.
///
/// Every call has a time limit of its own. After [`Error::Outage`] connect again.
#[derive(Clone)]
pub struct Admin(pub(crate) Arc<Session>);

pub(crate) struct Session {
    pub(crate) server: Server,
    pub(crate) endpoint: Endpoint,
    pub(crate) client: Client,
    /// The major version, such as 15.
    pub(crate) version: u32,
    inspect: OnceCell<Statement>,
    /// Drives the connection; aborted with the session.
    _driver: JoinSet<()>,
}

/// How long a statement may take that only looks.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What every admin session runs under; the user's own options come first.
const OPTIONS: &str =
    "-c search_path=pg_catalog -c statement_timeout=0 -c idle_session_timeout=0 -c lock_timeout=4s";

impl Admin {
    /// Connects to the first host that takes writes, in the order of the list.
    pub async fn connect(server: &Server) -> Result<Admin, Error> {
        let (mut stop, mut outages) = (None, Vec::new());
        for host in &server.hosts {
            match Self::connect_host(server, host).await {
                Ok(admin) => return Ok(admin),
                Err(Error::Outage(why)) => outages.push(why),
                Err(other) => stop = stop.or(Some(other)),
            }
        }
        // A host that is away may be the one that would let us in.
        match stop {
            Some(stop) if outages.is_empty() => Err(stop),
            _ => Err(Error::Outage(outages.join("; "))),
        }
    }

    async fn connect_host(server: &Server, host: &Host) -> Result<Admin, Error> {
        let mut last = Error::Outage(format!("connect to {host}: it has no address"));
        for endpoint in addresses(server, host).await? {
            for &encrypted in ways(server, &endpoint) {
                let endpoint = endpoint.clone().with_tls(encrypted);
                let login = timeout(server.connect_limit, login(server, endpoint.clone())).await;
                match login.unwrap_or_else(|_| Err(Failed::hard(&endpoint, "no answer in time"))) {
                    Ok(admin) => return Ok(admin),
                    Err(failed) => {
                        let go_on = failed.other_way;
                        if !failed.no_tls || matches!(last, Error::Outage(_)) {
                            last = failed.error;
                        }
                        if !go_on {
                            break;
                        }
                    }
                }
            }
            if matches!(last, Error::Stop(_)) {
                break;
            }
        }
        Err(last)
    }

    /// The server it is connected to, for logs.
    pub fn endpoint(&self) -> String {
        self.0.endpoint.to_string()
    }

    /// The server's major version, such as 15.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// Looks at everything the relay stands on: one round trip, no write.
    pub async fn inspect(&self, subject: &Subject) -> Result<Inspection, Error> {
        match self.look(subject).await {
            // Without the table only the record is unknown; the rest is still worth saying.
            Err(Error::Stop(stop)) if stop.reason == Reason::NoSchema => {
                self.look_with(inspect::statement(self.0.version, false).as_str(), subject).await
            }
            looked => looked,
        }
    }

    /// [`Self::inspect`], then [`Inspection::verdict`] and [`Inspection::rights`]; for a relay, before it connects (`walsender`
    /// None) and every `report_every_ms` (its own walsender, which must still hold the slot).
    pub async fn check(&self, subject: &Subject, walsender: Option<i32>) -> Result<Inspection, Error> {
        let seen = self.inspect(subject).await?;
        if seen.in_recovery {
            return Err(Error::Outage(format!("{} is a standby now", self.endpoint())));
        }
        seen.verdict(subject)?;
        seen.rights()?;
        if let Some(ours) = walsender {
            let holder = seen.slot.as_ref().and_then(|slot| slot.active_pid);
            if holder != Some(ours) {
                return Err(Error::Outage(format!(
                    "{SESSION_OVER}: the slot is {}",
                    holder.map_or("free".to_owned(), |pid| format!("held by pid {pid}"))
                )));
            }
            if seen.record.as_ref().is_some_and(|record| record::worth_counting(&seen, record)) {
                self.execute(
                    "record the transactions decoded",
                    Doing::Relay,
                    record::COUNTED,
                    subject.slot(),
                )
                .await?;
            }
        }
        Ok(seen)
    }

    async fn look(&self, subject: &Subject) -> Result<Inspection, Error> {
        let statement = self.0.inspect.get_or_try_init(|| async {
            let text = inspect::statement(self.0.version, true);
            let types = [Type::TEXT, Type::TEXT, Type::TEXT_ARRAY, Type::TEXT_ARRAY];
            self.within("inspect", Doing::Relay, LOOK_LIMIT, self.0.client.prepare_typed(&text, &types)).await
        });
        self.look_with(statement.await?, subject).await
    }

    async fn look_with<T: tokio_postgres::ToStatement + ?Sized>(
        &self,
        statement: &T,
        subject: &Subject,
    ) -> Result<Inspection, Error> {
        let schemas: Vec<&str> = subject.tables().iter().map(|name| name.schema.as_str()).collect();
        let tables: Vec<&str> = subject.tables().iter().map(|name| name.table.as_str()).collect();
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&subject.slot(), &subject.publication(), &schemas, &tables];
        let query = self.0.client.query_one(statement, &parameters);
        let row = self.within("inspect", Doing::Relay, LOOK_LIMIT, query).await?;
        serde_json::from_str(row.get(0))
            .map_err(|e| Error::Outage(format!("inspect: read the server's answer: {e}")))
    }

    /// Runs a statement with the slot's name as its one parameter; the number of rows it touched.
    pub(crate) async fn execute(
        &self,
        what: &str,
        doing: Doing,
        statement: &str,
        slot: &str,
    ) -> Result<u64, Error> {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&slot, Type::TEXT)];
        self.within(what, doing, LOOK_LIMIT, self.0.client.execute_typed(statement, &parameters)).await
    }

    /// Runs a query with text parameters.
    pub(crate) async fn query(
        &self,
        what: &str,
        doing: Doing,
        statement: &str,
        parameters: &[&str],
    ) -> Result<Vec<Row>, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            parameters.iter().map(|text| (text as &(dyn ToSql + Sync), Type::TEXT)).collect();
        self.within(what, doing, LOOK_LIMIT, self.0.client.query_typed(statement, &typed)).await
    }

    /// Runs statements without parameters or results.
    pub(crate) async fn batch(&self, what: &str, doing: Doing, statements: &str) -> Result<(), Error> {
        self.within(what, doing, LOOK_LIMIT, self.0.client.batch_execute(statements)).await
    }

    /// A second connection to the same server, the same way.
    pub(crate) async fn twin(&self) -> Result<Admin, Error> {
        let Session { server, endpoint, .. } = &*self.0;
        match timeout(server.connect_limit, login(server, endpoint.clone())).await {
            Ok(Ok(admin)) => Ok(admin),
            Ok(Err(failed)) => Err(failed.error),
            Err(_) => Err(Failed::hard(endpoint, "no answer in time").error),
        }
    }

    pub(crate) async fn within<T>(
        &self,
        what: &str,
        doing: Doing,
        limit: Duration,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        match timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(failure::sql(what, doing, &e, &self.0.server)),
            Err(_) => Err(Error::Outage(format!("{what}: no answer within {} s", limit.as_secs()))),
        }
    }
}

/// A login that did not succeed.
struct Failed {
    error: Error,
    /// With `allow` and `prefer`: encrypted instead of plain, or plain instead of encrypted, may do.
    other_way: bool,
    /// It failed because the server has no TLS; whatever the other way says is of more use.
    no_tls: bool,
}

impl Failed {
    fn hard(endpoint: &Endpoint, why: &str) -> Failed {
        let error = Error::Outage(format!("connect to {endpoint}: {why}"));
        Failed { error, other_way: false, no_tls: false }
    }
}

/// One attempt: connect, log in, and see that the server takes writes.
async fn login(server: &Server, endpoint: Endpoint) -> Result<Admin, Failed> {
    let wire = match endpoint.open(server.tls.as_ref()).await {
        Ok(wire) => wire,
        Err(WireError::Unreachable(e)) => return Err(Failed::hard(&endpoint, &e.to_string())),
        Err(WireError::Tls(e)) => {
            let why = format!("encrypt the session: {}", chain(&e));
            return Err(Failed { other_way: true, no_tls: true, ..Failed::hard(&endpoint, &why) });
        }
    };
    let what = format!("connect to {endpoint} as {}", server.user);
    let failed = |e: tokio_postgres::Error| Failed {
        // pg_hba.conf may let one way in and not the other.
        other_way: e.code() == Some(&tokio_postgres::error::SqlState::INVALID_AUTHORIZATION_SPECIFICATION),
        no_tls: false,
        error: failure::sql(&what, Doing::Connect, &e, server),
    };
    let mut config = tokio_postgres::Config::new();
    config
        .user(&server.user)
        .dbname(&server.database)
        .application_name(&server.application_name)
        .options(server.options_with(OPTIONS))
        .ssl_mode(tokio_postgres::config::SslMode::Disable);
    if let Some(password) = &server.password {
        config.password(password);
    }
    let (client, connection) = config.connect_raw(wire, NoTls).await.map_err(failed)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(e) = connection.await {
            tracing::debug!("the admin connection ended: {e}");
        }
    });
    let row = client
        .query_typed_one(
            "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
               current_setting('server_version_num')::integer / 10000",
            &[],
        )
        .await
        .map_err(failed)?;
    let (standby, read_only, version): (bool, bool, i32) = (row.get(0), row.get(1), row.get(2));
    if standby || (read_only && server.writable == Writable::ReadWrite) {
        let why = if standby { "it is a standby" } else { "its sessions are read only" };
        return Err(Failed::hard(&endpoint, why));
    }
    let version = u32::try_from(version).unwrap_or_default();
    let inspect = OnceCell::new();
    let server = server.clone();
    Ok(Admin(Arc::new(Session { server, endpoint, client, version, inspect, _driver: driver })))
}

/// The encrypted (true) and plain ways to one address, in order.
fn ways(server: &Server, endpoint: &Endpoint) -> &'static [bool] {
    match endpoint {
        // As in libpq, a Unix socket is never encrypted.
        Endpoint::Unix { .. } => &[false],
        Endpoint::Tcp { .. } => server.ssl_mode.attempts(),
    }
}

async fn addresses(server: &Server, host: &Host) -> Result<Vec<Endpoint>, Error> {
    let tcp = |name: &str, address| Endpoint::Tcp { address, name: name.to_owned(), encrypted: false };
    match host {
        Host::Unix(folder, port) => Ok(vec![Endpoint::Unix { folder: folder.clone(), port: *port }]),
        Host::Tcp(name, Some(ip), port) => Ok(vec![tcp(name, SocketAddr::new(*ip, *port))]),
        Host::Tcp(name, None, port) => {
            let looked_up = timeout(server.connect_limit, tokio::net::lookup_host((name.as_str(), *port)));
            match looked_up.await {
                Ok(Ok(found)) => Ok(found.map(|address| tcp(name, address)).collect()),
                Ok(Err(e)) => Err(Error::Outage(format!("look up {name}: {e}"))),
                Err(_) => Err(Error::Outage(format!("look up {name}: no answer in time"))),
            }
        }
    }
}
