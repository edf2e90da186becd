//! Private Postgres and RabbitMQ servers, the faults that break them, and the oracle that judges the relay.
//!
//! It depends on none of the crates it judges. Every server runs in its own temporary folder, on free ports of
//! 127.0.0.1, and is gone when its value is dropped or when the process that owns it dies, however it dies.

mod account;
mod apt;
mod binaries;
mod children;
pub mod cluster;
pub mod compose;
pub mod consumer;
pub mod ctl;
mod epmd;
pub mod frame;
mod guard;
mod home;
pub mod install;
pub mod languages;
pub mod link;
mod lock;
mod log;
pub mod oracle;
mod other_version;
pub mod pair;
mod port;
pub mod postgres;
mod postgres_options;
mod pump;
pub mod rabbitmq;
pub mod relay;
pub mod rig;
pub mod scope;
mod seed;
pub mod sql;
pub mod tls;
mod url;
mod wait;
pub mod worker;
pub mod writer;

pub use cluster::Cluster;
pub use ctl::Ctl;
pub use frame::{Direction, Frame, Protocol};
pub use link::{ArmedCut, Cut, Link};
pub use pair::{Pair, Turn};
pub use postgres::{Postgres, PostgresOptions, Stop, Tls};
pub use rabbitmq::{RabbitMq, RabbitMqOptions};
pub use rig::Rig;
pub use scope::{Addresses, Scope};
pub use sql::Sql;
pub use tls::Certificates;
pub use wait::eventually;
pub use worker::Worker;
