//! Everyday tools on model directories in a mount, compared with the source: what they list, copy, move, archive and remove,
//! and which names lead to tensors.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod both;
mod collections;
mod copies;
mod interrupt;
mod names;
