//! Everyday tools on model directories in a mount, compared with the source: listings, copies, moves, archives, removals,
//! and the names of tensors.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod both;
mod collections;
mod copies;
mod hub;
mod interrupt;
mod lease;
mod names;
mod plain_names;
mod top;
