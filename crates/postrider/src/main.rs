//! The relay binary.

mod config;
mod health;
mod logs;
mod metrics;

fn main() {}
