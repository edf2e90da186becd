//! The commands besides `run`: each asks or does one thing and ends.

mod config;
mod doctor;
mod inbox;
mod init;
mod parked;
mod payload;
mod quarantine;
mod slot;
mod status;
mod table;

pub(crate) use config::{config, example};
pub(crate) use doctor::doctor;
pub(crate) use inbox::inbox;
pub(crate) use init::init;
pub(crate) use parked::parked;
pub(crate) use quarantine::quarantine;
pub(crate) use slot::slot;
pub(crate) use status::status;
pub(crate) use table::note;

/// The exit code of wrong words, `--yes` not among them: nothing was done.
const NOT_ASKED: u8 = 2;
