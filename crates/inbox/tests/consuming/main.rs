//! The consumer loop between a real broker and a real database, both of which break.

mod adverse;
mod crashes;
mod failures;
mod gaps;
mod limits;
mod messages;
mod metrics;
mod station;
