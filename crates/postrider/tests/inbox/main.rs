//! The relay and the inbox together, and the inbox and its parking queues for operators.

mod operators;
mod parked;
mod station;
mod stays;
mod whole_way;

const BINARY: &str = env!("CARGO_BIN_EXE_postrider");
