//! Private Postgres and RabbitMQ servers, the faults that break them, and the oracle that judges the relay.
//!
//! It depends on none of the crates it judges. Every server runs in its own temporary folder, on free ports of
//! 127.0.0.1, and is gone when its value is dropped or when the process that owns it dies, however it dies.

mod account;
mod binaries;
mod children;
pub mod ctl;
mod guard;
mod home;
mod port;
pub mod postgres;
pub mod rabbitmq;
mod seed;
pub mod sql;
pub mod tls;
mod wait;

pub use ctl::Ctl;
pub use postgres::{Postgres, PostgresOptions, Stop};
pub use rabbitmq::{RabbitMq, RabbitMqOptions};
pub use sql::Sql;
pub use tls::Certificates;
pub use wait::eventually;
