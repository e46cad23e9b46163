//! `tierfs`: a file system for tensors.
//!
//! A store keeps tensors as checksummed blocks in precision tiers; a mount shows them as files. The modules form
//! layers, lowest first. A module imports lower layers only; `tests/tidy/rules.rs` has their heights and rejects the
//! rest:
//!
//! `model` < `codec`, `format`, `trace` < `store` < `stream`, `remote` < `ingest`, `engine` < `vfs` < `control` <
//! `csi`, `fs`, `gpu` < `cli`.
//!
//! `docs/TOUR.md` draws the picture and follows a read, a write, an import and a push through it. `docs/CHANGING.md`
//! says what to edit for the usual changes, `docs/LOCKS.md` has the order of locks. The head of each folder, the
//! comment of its `mod.rs`, explains how the folder works.
//!
//! # The portable core
//!
//! Without the default features (`--no-default-features`) the crate has no `fs`, `cli` and `store/disk/files.rs`, and
//! needs none of their dependencies. The formats, the codecs and a store remain. The store lies on
//! `store/disk/memory.rs` or on another implementation of the traits `Disk` and `File`.
//!
//! The core also builds for WebAssembly: `scripts/targets.sh wasm` builds it for `wasm32-unknown-unknown`, and runs
//! `tests/codec/`, `tests/formats/` and `tests/log/` for `wasm32-wasip1` in wasmtime. There the codecs use portable
//! code, and rayon works on the calling thread. `wasm32-unknown-unknown` has no clock, and the standard library panics
//! where one is asked for: formats and codecs ask for none, a store does. A host there implements
//! [`Clock`](store::Clock), and calls [`set_host_clock`](store::set_host_clock) before it opens a store.
//!
//! `scripts/targets.sh aarch64` runs `tests/codec/` for 64-bit ARM under qemu, with the NEON set; `scripts/targets.sh
//! check` runs clippy over the whole program for it. `scripts/test-long.sh` runs both.

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

#[cfg(feature = "csi")]
#[deny(clippy::indexing_slicing)]
pub mod csi;

#[cfg(feature = "mount")]
#[deny(clippy::indexing_slicing)]
pub mod cli;
