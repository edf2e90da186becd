//! The Postgres edge on real servers: every stop with its cure, the stream through faults, the quarantine,
//! init and slots, TLS.

mod admin;
mod doctor;
mod init;
mod quarantine;
mod rig;
mod rights;
mod slots;
mod stops;
mod stream;
mod tls;
mod versions;
