//! Ring `fault`: each row breaks something under a relay at work, and one oracle judges what came of it.
//!
//! The scenario is the same for all ([`scene`]): a shop writes, the relay carries, the harm is done, the shop writes
//! on; then everything that is committed has to be in the queue, once or with copies that the slot's position
//! allows, in order, with the bytes of the database, and the slot has to have followed.

mod broker;
mod drain;
mod held;
mod idle;
mod kills;
mod limits;
mod majority;
mod memory;
mod poison;
mod postgres;
mod pressure;
mod publication;
mod returns;
mod routes;
mod scene;
mod servers;
mod setting;
mod shelf;
mod shutdown;
mod standby;
mod witness;
