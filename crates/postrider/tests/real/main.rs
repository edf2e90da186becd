//! Ring `real`: the binary against real servers, most of them shared, judged from outside.
//!
//! Every `run` logs in as the role of `sql/roles.sql`, never as a superuser, and whatever a relay has logged when
//! its test ends is searched for payloads and passwords.

mod alterations;
mod commands;
mod golden;
mod hold;
mod init;
mod logins;
mod mending;
mod out_of_reach;
mod pages;
mod parked;
mod payloads;
mod poison;
mod publications;
mod quarantine;
mod releases;
mod rows;
mod run;
mod slots;
mod stage;
mod stops;
mod tls;
mod transactions;
mod unrouted;
mod waits;
mod xtask;
