//! The inbox on a real Postgres: the classic scenarios, concurrency, numbers, two phases, retention, rights.

#[cfg(feature = "sqlx")]
mod by_sqlx;
mod classic;
mod concurrent;
mod crowd;
mod place;
mod prune;
mod rights;
mod sequence;
mod trips;
mod two_phase;
mod versions;
