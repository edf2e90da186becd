//! Ring `real`: the binary against real servers, most of them shared, judged from outside.
//!
//! Every `run` logs in as the role of `sql/roles.sql`, never as a superuser, and whatever a relay has logged when
//! its test ends is searched for payloads and passwords.

mod alterations;
mod commands;
mod golden;
mod held;
mod init;
mod logins;
mod pages;
mod payloads;
mod publications;
mod quarantine;
mod run;
mod slots;
mod stage;
mod stops;
mod tls;
mod transactions;
mod waits;
mod xtask;
