//! What a private Postgres server is like, and the lines of its configuration that say so.

use std::path::{Path, PathBuf};

use crate::tls::Certificates;

/// What to start; the default is a server as a careful user would run it: `fsync` on, `wal_level = logical`.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The folder of the server's programs; none: the newest that is installed.
    pub bin: Option<PathBuf>,
    /// Off makes the server quicker where no test looks at durability.
    pub fsync: bool,
    /// `replica` is what a fresh installation has.
    pub wal_level: &'static str,
    /// Milliseconds; none: the server's default of a minute.
    pub wal_sender_timeout_ms: Option<u32>,
    /// Megabytes of WAL that a slot may hold back; none: any amount.
    pub max_slot_wal_keep_size_mb: Option<u32>,
    /// Whether, and how strictly, the server speaks TLS.
    pub tls: Tls,
    /// Further lines of `postgresql.conf`, as name and value; they win over all others.
    pub settings: Vec<(String, String)>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            bin: None,
            fsync: true,
            wal_level: "logical",
            wal_sender_timeout_ms: None,
            max_slot_wal_keep_size_mb: None,
            tls: Tls::Off,
            settings: Vec::new(),
        }
    }
}

/// A server's attitude to TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Not spoken.
    Off,
    /// Spoken with clients that ask for it.
    Offered,
    /// A connection without it is refused.
    Required,
}

impl PostgresOptions {
    /// The lines of `postgresql.conf`, later ones winning, for a server on `port` with its socket in `folder`.
    pub(crate) fn lines(
        &self,
        port: u16,
        folder: &Path,
        certificates: Option<&Certificates>,
    ) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut say = |name: &str, value: String| lines.push((name.to_owned(), value));
        say("listen_addresses", "127.0.0.1".to_owned());
        say("port", port.to_string());
        say("unix_socket_directories", folder.display().to_string());
        say("wal_level", self.wal_level.to_owned());
        say("max_wal_senders", "64".to_owned());
        say("max_replication_slots", "64".to_owned());
        say("max_connections", "200".to_owned());
        say("password_encryption", "scram-sha-256".to_owned());
        say("fsync", if self.fsync { "on" } else { "off" }.to_owned());
        say("log_line_prefix", "%m [%p] %a %d ".to_owned());
        if let Some(limit) = self.wal_sender_timeout_ms {
            say("wal_sender_timeout", format!("{limit}ms"));
        }
        if let Some(size) = self.max_slot_wal_keep_size_mb {
            say("max_slot_wal_keep_size", format!("{size}MB"));
        }
        if let Some(files) = certificates {
            say("ssl", "on".to_owned());
            say("ssl_cert_file", files.certificate.display().to_string());
            say("ssl_key_file", files.key.display().to_string());
        }
        lines.extend(self.settings.iter().cloned());
        lines
    }

    /// The text of `pg_hba.conf`: a password for everybody over TCP, for nobody over the unix socket.
    pub(crate) fn access(&self) -> String {
        let host = if self.tls == Tls::Required { "hostssl" } else { "host" };
        format!(
            "local all all trust\nlocal replication all trust\n\
             {host} all all 127.0.0.1/32 scram-sha-256\n{host} replication all 127.0.0.1/32 scram-sha-256\n"
        )
    }
}
