//! The commands besides `run`: each asks or does one thing and ends.

mod config;

pub(crate) use config::config;
