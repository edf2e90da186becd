//! What one test has to itself on servers that it shares: a database, and names that no other test uses.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::ctl::Ctl;
use crate::postgres::{SUPERUSER, SUPERUSER_PASSWORD};
use crate::rabbitmq::GUEST;
use crate::sql::Sql;
use crate::{pair, seed, url};

/// Postgres cuts longer names than 63 bytes; a test may append to its own.
const NAME_MAX: usize = 40;

/// A test's own database and names. The servers' end removes them.
#[derive(Clone, Debug)]
pub struct Scope {
    name: String,
    vhost: String,
    addresses: Addresses,
}

impl Scope {
    /// A scope on the servers that all tests share; `test` makes its name readable.
    pub async fn shared(test: &str) -> Result<Self> {
        Self::create(pair::shared().await?.clone(), test).await
    }

    /// A scope on any servers.
    pub async fn create(addresses: Addresses, test: &str) -> Result<Self> {
        let name = unique_name(test);
        let sql = Sql::connect(&addresses.admin_url("postgres")).await?;
        let create = format!("create database \"{name}\"");
        sql.batch_execute(&create).await.with_context(|| format!("create database {name}"))?;
        Ok(Self { name, vhost: "/".to_owned(), addresses })
    }

    /// The unique name, made of a-z, 0-9 and `_`: the database's, and good for a slot, a publication, an exchange, a role
    /// or, with something appended, a queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The unique name of a second thing, a queue say.
    pub fn named(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    /// The superuser's URL of the database.
    pub fn admin_url(&self) -> String {
        self.addresses.admin_url(&self.name)
    }

    /// A role's URL of the database.
    pub fn postgres_url(&self, user: &str, password: &str) -> String {
        url::postgres(user, password, self.addresses.postgres_port, &self.name)
    }

    /// A superuser's connection to the database.
    pub async fn connect(&self) -> Result<Sql> {
        Sql::connect(&self.admin_url()).await
    }

    /// The broker's URL: of the vhost `/` that all share, or of [`Self::take_vhost`]'s.
    pub fn amqp_url(&self) -> String {
        self.addresses.amqp_url(GUEST, GUEST, &self.vhost)
    }

    /// The URL for another user, the vhost being the same.
    pub fn amqp_url_for(&self, user: &str, password: &str) -> String {
        self.addresses.amqp_url(user, password, &self.vhost)
    }

    /// The vhost.
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// Makes a vhost of this test's own, about a second of CPU: for tests that need default names in it.
    pub async fn take_vhost(&mut self) -> Result<()> {
        self.ctl().add_vhost(&self.name).await?;
        self.ctl().set_permissions(&self.name, GUEST, [".*", ".*", ".*"]).await?;
        self.vhost.clone_from(&self.name);
        Ok(())
    }

    /// The broker's command-line tool.
    pub fn ctl(&self) -> &Ctl {
        &self.addresses.ctl
    }

    /// Where the servers are.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }
}

/// How to reach a pair of servers, also from another process.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Postgres' port on 127.0.0.1.
    pub postgres_port: u16,
    /// RabbitMQ's AMQP port on 127.0.0.1.
    pub rabbitmq_port: u16,
    /// RabbitMQ's command-line tool.
    pub ctl: Ctl,
}

impl Addresses {
    /// The URL of `database` for the superuser.
    pub fn admin_url(&self, database: &str) -> String {
        url::postgres(SUPERUSER, SUPERUSER_PASSWORD, self.postgres_port, database)
    }

    /// The broker's URL of `vhost` for `user`.
    pub fn amqp_url(&self, user: &str, password: &str, vhost: &str) -> String {
        url::rabbitmq("amqp", user, password, "127.0.0.1", self.rabbitmq_port, vhost)
    }

    /// Writes the file that [`pair::SHARED`] names for other processes.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = json!({
            "postgres_port": self.postgres_port,
            "rabbitmq_port": self.rabbitmq_port,
            "ctl": self.ctl.to_json(),
        });
        std::fs::write(path, text.to_string()).with_context(|| format!("write {}", path.display()))
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let found: Value =
            serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))?;
        let port = |key: &str| {
            let number = found[key].as_u64().and_then(|number| u16::try_from(number).ok());
            number.with_context(|| format!("read {key} of {}", path.display()))
        };
        Ok(Self {
            postgres_port: port("postgres_port")?,
            rabbitmq_port: port("rabbitmq_port")?,
            ctl: Ctl::from_json(&found["ctl"]).with_context(|| format!("read {}", path.display()))?,
        })
    }
}

/// `test` in the letters that slots may have, cut, with a random end.
fn unique_name(test: &str) -> String {
    let letters = test
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' });
    let readable: String = letters.take(NAME_MAX - 13).collect();
    format!("t_{readable}_{:010x}", seed::random() & 0xFF_FFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_readable_unique_and_short() {
        let [one, other] =
            [(), ()].map(|()| unique_name("Orders: arrive, in order, at whatever length this test has"));
        assert_ne!(one, other);
        assert!(one.starts_with("t_orders__arrive__in_"), "{one}");
        assert_eq!(one.len(), NAME_MAX);
        assert!(one.bytes().all(|letter| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{one}");
    }
}
