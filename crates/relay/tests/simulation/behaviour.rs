//! Single rules, each shown with a handful of frames and answers.

mod channel;
mod drain;
mod hold;
mod limits;
mod order;
mod quarantine;
mod routes;
mod scene;
