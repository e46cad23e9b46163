//! `tierfs`: a file system for tensors.
//!
//! A store keeps tensors as checksummed blocks in precision tiers; a mount shows
//! them as files. The modules form layers, lowest first; imports go downwards only
//! (`docs/ARCHITECTURE.md` draws the map, `tests/tidy/` checks it):
//!
//! `model` < `codec`, `format`, `trace` < `store` < `stream`, `remote` < `ingest`, `engine`
//! < `vfs` < `control` < `fs`, `gpu` < `cli`.

#[deny(clippy::indexing_slicing)]
pub mod model;

#[warn(missing_docs)]
pub mod codec;

#[deny(clippy::indexing_slicing)]
#[warn(missing_docs)]
pub mod format;

#[deny(clippy::indexing_slicing)]
pub mod trace;

#[warn(missing_docs)]
pub mod store;

pub mod stream;

#[cfg(feature = "remote")]
#[deny(clippy::indexing_slicing)]
pub mod remote;

#[deny(clippy::indexing_slicing)]
pub mod ingest;

#[deny(clippy::indexing_slicing)]
pub mod engine;

#[deny(clippy::indexing_slicing)]
pub mod vfs;

#[deny(clippy::indexing_slicing)]
pub mod control;

#[cfg(feature = "mount")]
#[deny(clippy::indexing_slicing)]
pub mod fs;

#[cfg(feature = "mount")]
pub mod gpu;

#[cfg(feature = "mount")]
#[deny(clippy::indexing_slicing)]
pub mod cli;
