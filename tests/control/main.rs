//! The view of a mount from inside: control files with their contents, actions and permissions, metrics, reports, and
//! traces. Compared with the files of the store and with the official Prometheus client. They need /dev/fuse.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod events;
mod files;
mod foreseen;
mod metrics;
mod refusals;
mod remotes;
mod report;
mod settings;
mod tags;
mod traces;
mod trail;
