//! Stores on object storage: the client, the snapshots that are published there, and the cache of their
//! files. The exporter of traces.
//!
//! This is the only layer with a network and with asynchronous code. Others call its functions from their
//! own threads and wait.

pub mod cache;
pub mod client;
pub mod clones;
pub mod examine;
pub mod files;
pub mod forms;
mod from_clone;
pub mod garbage;
pub mod mounted;
mod names;
pub mod newest;
pub mod order;
pub mod pieces;
pub mod place;
pub mod push;
mod recent;
pub mod suppliers;
pub mod tags;
pub mod teller;
#[cfg(feature = "traces")]
pub mod traces;
